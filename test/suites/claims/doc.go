// Package claims compares plans for pods with ResourceClaims with the allocator of the scheduler.
package claims
