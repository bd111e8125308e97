// Package firstfit packs pods as Karpenter's scheduler does: first fit decreasing. The plans of the solver are compared with its plan.
package firstfit
