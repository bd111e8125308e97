// Package check verifies plans by the rules of the model. The model is the only package of Karve that it imports, so it cannot share a mistake with the
// search.
package check
