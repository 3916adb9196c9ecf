// Bundles the playground into dist/, which package graphiql embeds: index.html, and assets/ with each file
// as .br and .gz only. Names carry a hash of the content; the same sources give the same bytes.
import { build } from "esbuild"
import { createHash } from "node:crypto"
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises"
import { basename, dirname, join } from "node:path"
import { fileURLToPath } from "node:url"
import { brotliCompressSync, constants, gzipSync } from "node:zlib"

const here = dirname(fileURLToPath(import.meta.url))
const dist = join(here, "dist")
const assets = join(dist, "assets")

const options = {
  absWorkingDir: here,
  bundle: true,
  minify: true,
  legalComments: "none",
  logLevel: "warning",
  metafile: true,
  outdir: assets,
  target: ["chrome115", "firefox115", "safari16.4"],
  define: { "process.env.NODE_ENV": '"production"' },
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  assetNames: "[name]-[hash]",
}

/** Output file of the entry point whose source ends in `source`. */
function output({ metafile }, source, extension) {
  const [file, made] = Object.entries(metafile.outputs)
    .find(([file, { entryPoint }]) => file.endsWith(extension) && entryPoint?.endsWith(source))
  return { file: basename(file), made }
}

/** The packages that the bundles contain, each once, and the folder that each was found in. */
async function bundledPackages(results) {
  const inputs = results.flatMap(({ metafile }) => Object.keys(metafile.inputs))
  const folders = new Set(inputs.map(input => input.match(/^(?:.*\/)?node_modules\/(@[^/]+\/[^/]+|[^/]+)/)?.[0]).filter(Boolean))
  const locked = JSON.parse(await readFile(join(here, "package-lock.json"), "utf8")).packages
  const packages = new Map()
  for (const folder of [...folders].sort()) {
    const { name, version, license } = JSON.parse(await readFile(join(here, folder, "package.json"), "utf8"))
    packages.set(`${name} ${version}`, { name, version, license, integrity: locked[folder]?.integrity, folder })
  }
  return [...packages.values()]
}

/** The licences of packages, as they ask to be passed on. */
async function licenseTexts(packages) {
  const texts = []
  for (const { name, version, license, folder } of packages) {
    const files = (await readdir(join(here, folder))).filter(name => /^(licen[cs]e|notice|thirdpartynotices)(\.|$)/i.test(name))
    const text = await Promise.all(files.map(file => readFile(join(here, folder, file), "utf8")))
    texts.push(`${name} ${version} (${license})\n\n${text.join("\n").trim()}\n`)
  }
  return texts.join(`\n${"-".repeat(79)}\n\n`)
}

for (const file of await readdir(dist)) {
  if (file !== ".keep") await rm(join(dist, file), { recursive: true })
}
await mkdir(assets)

const workerSources = {
  editor: "monaco-editor/esm/vs/editor/editor.worker.js",
  json: "monaco-editor/esm/vs/language/json/json.worker.js",
  graphql: "monaco-graphql/esm/graphql.worker.js",
}
const workers = await build({
  ...options,
  format: "iife",
  entryPoints: Object.entries(workerSources).map(([label, source]) => ({ in: source, out: `${label}-worker` })),
})
const workerFiles = Object.fromEntries(
  Object.entries(workerSources).map(([label, source]) => [label, output(workers, source, ".js").file]),
)

const page = await build({
  ...options,
  format: "esm",
  splitting: true,
  entryPoints: ["src/playground.jsx"],
  jsx: "automatic",
  define: { ...options.define, WORKERS: JSON.stringify(workerFiles) },
  loader: { ".ttf": "file", ".woff2": "file" },
})
const { file: script, made } = output(page, "src/playground.jsx", ".js")

const packages = await bundledPackages([workers, page])
// For the software bill of materials of a release; the playground serves assets only.
await writeFile(join(dist, "packages.json"), JSON.stringify(packages.map(({ folder, ...shown }) => shown), null, 1) + "\n")
const licenses = await licenseTexts(packages)
const license = `licenses-${createHash("sha256").update(licenses).digest("hex").slice(0, 8)}.txt`
await writeFile(join(assets, license), licenses)

const template = await readFile(join(here, "src/index.html"), "utf8")
await writeFile(
  join(dist, "index.html"),
  template.replace("{{script}}", script).replace("{{style}}", basename(made.cssBundle)).replace("{{license}}", license),
)

const total = { plain: 0, br: 0, gz: 0 }
for (const file of (await readdir(assets)).sort()) {
  const path = join(assets, file)
  if (file.endsWith(".css") && file !== basename(made.cssBundle)) {
    await rm(path) // a chunk's own copy of styles that the page's one style sheet has
    continue
  }
  const plain = await readFile(path)
  const br = brotliCompressSync(plain, {
    params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: plain.length },
  })
  const gz = gzipSync(plain, { level: 9 })
  await Promise.all([writeFile(`${path}.br`, br), writeFile(`${path}.gz`, gz), rm(path)])
  total.plain += plain.length
  total.br += br.length
  total.gz += gz.length
}
const kib = bytes => `${Math.round(bytes / 1024)} KiB`
console.log(`playground: ${kib(total.plain)}, as brotli ${kib(total.br)}, as gzip ${kib(total.gz)}`)
