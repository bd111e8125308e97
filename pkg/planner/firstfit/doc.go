// Package firstfit packs pods as Karpenter's scheduler does: first fit decreasing. Its plan is what a plan of the solver is compared with.
package firstfit
