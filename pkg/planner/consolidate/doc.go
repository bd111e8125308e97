// Package consolidate decides which of the running machines to give back, so that what stays and what is launched instead costs less an hour.
package consolidate
