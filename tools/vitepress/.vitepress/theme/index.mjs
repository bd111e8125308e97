import theme from 'vitepress/theme-without-fonts'
import Mermaid from './Mermaid.vue'
import './style.css'

export default { extends: theme, enhanceApp: ({ app }) => app.component('Mermaid', Mermaid) }
