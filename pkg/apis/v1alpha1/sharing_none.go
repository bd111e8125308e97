package v1alpha1

// wholeGPUs is StrategyNone: each pod has its GPUs to itself.
type wholeGPUs struct{}

func (wholeGPUs) shared() bool { return false }

func (wholeGPUs) resource(Sharing) string { return ResourceGPU }

func (wholeGPUs) replicas(Sharing, string) (least, most int64) { return 1, 1 }
