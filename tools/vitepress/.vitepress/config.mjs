// The site has the Markdown files of the repository as they are: its pages have their paths, and its sidebar is the tables of docs/README.md.
import fs from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'

const root = process.env.ROOT
const read = (file) => fs.readFileSync(path.join(root, file), 'utf8')
const icon = 'data:image/svg+xml,' + encodeURIComponent(read('docs/icon.svg'))
const base = process.env.BASE || '/'

// address returns the path of a page on the site. The page of a folder is its README.md, as on GitHub.
const address = (file) => file.replace(/(^|\/)README\.md$/, '$1index.md')

const isPage = (file) => file.endsWith('.md') && !/^(\.|_output\/)/.test(file)

// titleOf returns the heading of a page, as HTML.
function titleOf(file) {
  const heading = read(file).match(/^# +(.*)$/m)
  if (!heading) throw new Error(`${file} has no heading`)
  return heading[1].replaceAll('`', '').replaceAll('&', '&amp;').replaceAll('<', '&lt;')
}

// resolve returns the file of the repository that a link on a page leads to: for a folder with a page, that page.
function resolve(from, link) {
  const file = path.join(path.dirname(from), decodeURI(link))
  const found = [path.join(file, 'README.md'), file].find((name) => fs.existsSync(path.join(root, name)))
  if (!found || found.startsWith('..')) throw new Error(`${from} links to ${link}, which does not exist`)
  return found
}

function sidebar() {
  const index = 'docs/README.md'
  const groups = []
  for (const [, first] of read(index).matchAll(/^\|([^|]*)\|/gm)) {
    const pages = [...first.matchAll(/\]\(([^)]+)\)/g)].map(([, link]) => resolve(index, link))
    if (pages.length) groups.at(-1).pages.push(...pages)
    else if (!first.startsWith('-')) groups.push({ text: first.trim(), pages: [] })
  }
  const listed = groups.flatMap((group) => group.pages)
  const item = (file) => ({ text: titleOf(file), link: '/' + address(file) })
  // The pages in the folder of a README.md, which are not listed themselves, follow it.
  const below = (file) => {
    const folder = path.dirname(file)
    const items = path.basename(file) !== 'README.md' ? [] : fs
      .readdirSync(path.join(root, folder), { recursive: true })
      .map((name) => path.join(folder, name))
      .filter((name) => isPage(name) && !listed.includes(name))
      .sort()
      .map(item)
    return items.length ? { items, collapsed: true } : {}
  }
  return groups.map(({ text, pages }) => ({ text: text[0].toUpperCase() + text.slice(1), items: pages.map((file) => ({ ...item(file), ...below(file) })) }))
}

// links makes links between files links between pages. A link to a file that is no page leads to SOURCE; without SOURCE, its text stays.
function links(md) {
  md.core.ruler.push('links', (state) => {
    const from = path.relative(root, state.env.realPath ?? state.env.path)
    for (const { children } of state.tokens) {
      const open = []
      for (const token of children ?? []) {
        if (token.type === 'link_open') open.push(token)
        else if (token.type === 'link_close') {
          const start = open.pop()
          const href = start.attrGet('href')
          if (/^([a-z]+:|#)/.test(href)) continue
          const [, link, anchor] = href.match(/^([^#]*)(.*)$/)
          const file = resolve(from, link)
          if (isPage(file)) start.attrSet('href', '/' + address(file) + anchor)
          else if (process.env.SOURCE) start.attrSet('href', `${process.env.SOURCE}/${file}${anchor}`)
          else {
            start.tag = token.tag = 'span'
            start.attrs = null
          }
        }
      }
    }
  })
}

// diagrams has the browser draw the blocks that GitHub draws.
function diagrams(md) {
  const { fence } = md.renderer.rules
  md.renderer.rules.fence = (tokens, i, ...rest) =>
    tokens[i].info.trim() === 'mermaid' ? `<Mermaid code="${encodeURIComponent(tokens[i].content)}" />` : fence(tokens, i, ...rest)
}

// imports resolves what compiled pages import as if the site had imported it, because there are no modules beside the pages.
const imports = {
  name: 'imports',
  enforce: 'pre',
  resolveId(id, importer, options) {
    if (importer?.endsWith('.md') && /^vue(\/|$)/.test(id)) return this.resolve(id, fileURLToPath(import.meta.url), { ...options, skipSelf: true })
  },
}

export default defineConfig({
  title: 'Karve',
  description: 'Shared GPUs on the nodes that Karpenter launches',
  base,
  srcDir: root,
  srcExclude: ['_output/**'],
  outDir: process.env.OUT,
  rewrites: address,
  ignoreDeadLinks: 'localhostLinks',
  head: [['link', { rel: 'icon', href: icon }]],
  markdown: {
    attrs: { disable: true },
    math: true,
    // As GitHub makes them: test/suites/docs has the same rule.
    anchor: { slugify: (heading) => heading.toLowerCase().replace(/[^\p{L}\p{N} _-]/gu, '').replaceAll(' ', '-') },
    config(md) {
      md.linkify.set({ fuzzyLink: false, fuzzyEmail: false })
      md.disable('emoji')
      links(md)
      diagrams(md)
    },
  },
  vite: { plugins: [imports], build: { chunkSizeWarningLimit: 1000 } },
  themeConfig: {
    logo: icon,
    nav: [
      { text: 'Documentation', link: '/docs/index.md' },
      { text: read('charts/karve/Chart.yaml').match(/^appVersion: *(.*)$/m)[1], link: '/CHANGELOG.md' },
    ],
    sidebar: sidebar(),
    outline: [2, 3],
    search: { provider: 'local' },
  },
})
