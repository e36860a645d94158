// Pictures of a question: picked, pasted or dropped, shown as thumbnails, sent as data URLs.

import { find, make } from "./elements.js";

const MOST_BYTES = 20_000_000; // of a file; a data URL is a third longer, and a conversation sends its pictures each time
const KINDS = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/tiff"];

// Returns the text of a message's content in the form of the API.
export function textOf(content) {
  if (!Array.isArray(content)) return content ?? "";
  return content.filter((part) => part.type === "text").map((part) => part.text).join("\n");
}

// Returns the addresses of its pictures.
export function picturesOf(content) {
  if (!Array.isArray(content)) return [];
  return content.filter((part) => part.type === "image_url").map((part) => part.image_url.url);
}

// Returns the content of a message with these pictures before its text.
export function contentOf(text, urls) {
  if (!urls.length) return text;
  const shown = urls.map((url) => ({ type: "image_url", image_url: { url } }));
  return text.trim() ? [...shown, { type: "text", text }] : shown;
}

export function thumbnail(url, name) {
  return make("img", { class: "thumbnail", src: url, alt: name });
}

function refusal(file) {
  const model = find("model");
  if (model.dataset.sees === "no") return `${model.dataset.name} takes text alone, so it is not shown ${file.name || "a picture"}.`;
  if (!KINDS.includes(file.type)) return `${file.name || "The file"} is of type ${file.type || "unknown"}; expected a picture (PNG, JPEG, WebP, GIF, BMP or TIFF).`;
  if (file.size <= MOST_BYTES) return "";
  return `${file.name} has ${(file.size / 1e6).toFixed(1)} MB; the page sends pictures of at most ${MOST_BYTES / 1e6} MB. Make it smaller first.`;
}

function addressOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(new Error(`${file.name} cannot be read: ${reader.error?.message}`)));
    reader.readAsDataURL(file);
  });
}

export class AttachedPictures {
  constructor() {
    this.urls = [];
    this.round = 0; // a file that is still read when its question is sent or cleared is dropped
    find("attach").addEventListener("click", () => find("files").click());
    find("files").addEventListener("change", () => {
      this.add([...find("files").files]);
      find("files").value = "";
    });
    find("question").addEventListener("paste", (event) => this.took(event, event.clipboardData));
    find("chat").addEventListener("dragover", (event) => {
      if (event.dataTransfer.types.includes("Files")) event.preventDefault();
    });
    find("chat").addEventListener("drop", (event) => this.took(event, event.dataTransfer));
  }

  took(event, data) {
    if (!data?.files.length) return;
    event.preventDefault();
    this.add([...data.files]);
  }

  async add(files) {
    const { round } = this;
    this.complain("");
    for (const file of files) {
      const why = refusal(file);
      if (why) {
        this.complain(why);
        continue;
      }
      try {
        const url = await addressOf(file);
        if (round === this.round) this.show(url, file.name);
      } catch (error) {
        this.complain(error.message);
      }
    }
    find("question").focus();
  }

  show(url, name) {
    const remove = make("button", { type: "button", class: "quiet", "aria-label": `Remove ${name}` }, "×");
    const shown = make("span", { class: "attached" }, thumbnail(url, name), remove);
    const entry = { url };
    remove.addEventListener("click", () => {
      this.urls.splice(this.urls.indexOf(entry), 1);
      shown.remove();
      find("question").focus();
    });
    this.urls.push(entry);
    find("attachments").append(shown);
  }

  complain(words) {
    find("picture_error").textContent = words;
    find("picture_error").hidden = !words;
  }

  // Returns the addresses of the pictures, which no longer belong to the question.
  take() {
    const urls = this.urls.map((entry) => entry.url);
    this.urls = [];
    this.round += 1;
    find("attachments").replaceChildren();
    this.complain("");
    return urls;
  }
}
