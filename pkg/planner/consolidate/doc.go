// Package consolidate decides which running machines to remove, so that the remaining machines and those launched instead cost less.
package consolidate
