// Package effort counts the steps that a search may still spend. The same number of steps gives the same plan on any computer.
package effort
