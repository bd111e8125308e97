// Package check judges plans by the rules of the model. It imports nothing of Karve's but the model, so that a mistake of the search cannot hide in the check.
package check
