// What a tab keeps when it is loaded again; it is gone with the tab, and no other tab sees it.

export function kept(name) {
  try {
    return JSON.parse(sessionStorage.getItem(name));
  } catch {
    return null; // something else wrote there
  }
}

export function keep(name, value) {
  try {
    sessionStorage.setItem(name, JSON.stringify(value));
  } catch {
    sessionStorage.removeItem(name); // beyond the browser's limit: half of it would be wrong
  }
}
