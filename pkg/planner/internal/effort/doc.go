// Package effort counts what a search may still spend, in steps of its loops. The same steps give the same plan on any machine.
package effort
