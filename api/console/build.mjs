// Bundles from npm into dist/ what the console's own modules use: uPlot, which draws its graphs. Package console embeds it; without it, the
// console shows the same figures as a table. The same sources give the same bytes.
import { build } from "esbuild"
import { createHash } from "node:crypto"
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises"
import { dirname, join } from "node:path"
import { fileURLToPath } from "node:url"
import { gzipSync } from "node:zlib"

const here = dirname(fileURLToPath(import.meta.url))
const dist = join(here, "dist")
const folder = join(here, "node_modules/uplot")

for (const file of await readdir(dist)) {
  if (file !== ".keep") await rm(join(dist, file), { recursive: true })
}
await mkdir(join(dist, "assets"))

const { name, version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"))
const locked = JSON.parse(await readFile(join(here, "package-lock.json"), "utf8")).packages["node_modules/uplot"]
const text = await readFile(join(folder, "LICENSE"), "utf8")

await build({
  absWorkingDir: here,
  entryPoints: [
    { in: join(folder, "dist/uPlot.esm.js"), out: "uplot" },
    { in: join(folder, "dist/uPlot.min.css"), out: "uplot" },
  ],
  outdir: dist,
  format: "esm",
  minify: true,
  legalComments: "none",
  banner: { js: `/* ${name} ${version}\n${text.trim()} */`, css: `/* ${name} ${version}, ${license} license */` },
  target: ["chrome115", "firefox115", "safari16.4"],
  logLevel: "warning",
})

// For the software bill of materials of a release, and its notices.
await writeFile(join(dist, "packages.json"), JSON.stringify([{ name, version, license, integrity: locked.integrity }], null, 1) + "\n")
const notice = `${name} ${version} (${license})\n\n${text.trim()}\n`
const sum = createHash("sha256").update(notice).digest("hex").slice(0, 8)
await writeFile(join(dist, "assets", `licenses-${sum}.txt.gz`), gzipSync(notice, { level: 9 }))
