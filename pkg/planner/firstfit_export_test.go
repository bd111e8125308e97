package planner

// FirstFitByLevel is FirstFit when there are too many pods and machines to deal them one by one.
func FirstFitByLevel(s Snapshot) Plan {
	f := newFirstFit(s)
	f.steps = 0
	return f.pack()
}
