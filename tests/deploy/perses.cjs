// Reads a dashboard on standard input with Perses' own schemas and units, and prints what these do not know.
// node perses.cjs FOLDER: FOLDER has node_modules with @perses-dev/core.
// Of that package the schemas and units: the rest wants React.
const built = require("node:path").resolve(process.argv[2], "node_modules/@perses-dev/core/dist/cjs");
const core = { ...require(`${built}/schema`), ...require(`${built}/model/units`) };
const board = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
const found = [];

// Where `given` has what is not in `read`: a schema drops the keys that it does not know.
function lost(given, read, path) {
  if (given === null || typeof given !== "object") return given === read ? [] : [path];
  return Object.entries(given).flatMap(([key, value]) =>
    read && typeof read === "object" && key in read ? lost(value, read[key], `${path}.${key}`) : [`${path}.${key}`]);
}

function check(schema, value, path) {
  const result = schema.safeParse(value);
  if (!result.success) found.push(...result.error.issues.map((issue) => `${path}.${issue.path.join(".")}: ${issue.message}`));
  else found.push(...lost(value, result.data, path));
}

for (const [name, panel] of Object.entries(board.spec.panels)) {
  check(core.panelDefinitionSchema, panel, name);
  const unit = panel.spec.plugin.spec.yAxis.format.unit;
  if (!(unit in core.UNIT_CONFIG)) found.push(`${name}: no unit ${unit}`);
}
for (const variable of board.spec.variables) check(core.variableDefinitionSchema, variable, variable.spec.name);
check(core.projectMetadataSchema, board.metadata, "metadata");
for (const field of ["duration", "refreshInterval"]) {
  if (!/^(\d+[dhms])+$/.test(board.spec[field])) found.push(`${field}: ${board.spec[field]}`);
}
console.log(JSON.stringify(found));
