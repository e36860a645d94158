// Data that survives a reload of the tab; it is gone with the tab, and no other tab sees it.

export function kept(name) {
  try {
    return JSON.parse(sessionStorage.getItem(name));
  } catch {
    return null; // another program wrote there
  }
}

export function keep(name, value) {
  try {
    sessionStorage.setItem(name, JSON.stringify(value));
  } catch {
    sessionStorage.removeItem(name); // beyond the browser's limit; a partial value would be wrong
  }
}
