import theme from 'vitepress/theme-without-fonts'
import Mermaid from './Mermaid.vue'

export default { extends: theme, enhanceApp: ({ app }) => app.component('Mermaid', Mermaid) }
