// Package effort counts what a search may still spend, in steps of its loops. The same number of steps gives the same plan on any computer.
package effort
