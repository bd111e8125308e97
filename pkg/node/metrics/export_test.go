package metrics

// Exports for the tests in metrics_test.
var (
	ParsePodFolder    = parsePodFolder
	ParseContainerLog = func(name string) (namespace, pod, container, id string, ok bool) {
		key, id, ok := parseContainerLog(name)
		return key.namespace, key.pod, key.container, id, ok
	}
	IsUID = isUID
)
