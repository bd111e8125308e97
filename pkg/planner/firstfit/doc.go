// Package firstfit packs pods like Karpenter's scheduler: first fit decreasing. The solver's plans are compared with its plan.
package firstfit
