// The reference of the API: every route of openapi.json with its fields.

import { find, make } from "./elements.js";

let schemas = {};

function nameOf(reference) {
  return reference.split("/").pop();
}

function typeOf(schema) {
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(", ");
  if (schema.type === "array") return `list of ${typeOf(schema.items ?? {})}`;
  return schema.type ?? "anything";
}

function table(name) {
  const schema = schemas[name];
  const required = new Set(schema.required ?? []);
  const rows = Object.entries(schema.properties ?? {}).map(([field, inner]) =>
    make("tr", {}, make("td", {}, make("code", {}, field)), make("td", {}, typeOf(inner)), make("td", {}, required.has(field) ? "required" : ""))
  );
  return make("details", {}, make("summary", {}, name), make("p", {}, schema.description ?? ""), make("div", { class: "scroll" }, make("table", {}, make("tbody", {}, ...rows))));
}

function bodies(content) {
  return Object.entries(content ?? {}).map(([media, body]) => {
    const reference = body.schema?.$ref;
    if (reference) return table(nameOf(reference));
    return make("p", { class: "dim" }, `${media}: ${body.schema?.description ?? typeOf(body.schema ?? {})}`);
  });
}

function article(path, method, operation) {
  const refusals = Object.keys(operation.responses ?? {}).filter((status) => status !== "200");
  return make(
    "article",
    {},
    make("h2", {}, `${method.toUpperCase()} ${path}`),
    make("p", {}, operation.description ?? operation.summary ?? ""),
    ...(operation.requestBody ? [make("p", { class: "dim" }, "body")] : []),
    ...bodies(operation.requestBody?.content),
    make("p", { class: "dim" }, "answer"),
    ...bodies(operation.responses?.["200"]?.content),
    make("p", { class: "dim" }, `errors: ${refusals.join(", ")}`)
  );
}

async function show() {
  const answer = await fetch("openapi.json");
  if (!answer.ok) throw new Error(`openapi.json: ${answer.status}`);
  const told = await answer.json();
  schemas = told.components.schemas;
  const articles = Object.entries(told.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => article(path, method, operation))
  );
  find("reference").replaceChildren(...articles);
}

show().catch((error) => find("reference").replaceChildren(make("p", { class: "error" }, error.message)));
