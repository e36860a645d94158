// Copies text to the clipboard. Over plain HTTP from another machine, browsers have no clipboard API; the old command still works.

import { make } from "./elements.js";

const SHOWN_MS = 1500;

async function copy(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const held = make("textarea", { class: "unseen", readonly: "" });
  held.value = text;
  document.body.append(held);
  held.select();
  const isCopied = document.execCommand("copy");
  held.remove();
  if (!isCopied) throw new Error("The browser does not let the page copy.");
}

// text: a function, since the text may have grown.
export function copyButton(text, label) {
  const button = make("button", { type: "button", class: "quiet", "aria-label": label }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await copy(text());
      button.textContent = "Copied";
    } catch (error) {
      button.textContent = "Not copied";
      button.title = error.message;
    }
    setTimeout(() => { button.textContent = "Copy"; }, SHOWN_MS);
  });
  return button;
}
