package cluster

import toolscache "k8s.io/client-go/tools/cache"

// Notes calls note with each object that an informer sees, and with gone for one that is there no more. An object that went while the informer's watch was broken
// goes to missed, as it was seen last.
func Notes(note func(o any, gone bool), missed func(o any)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { note(o, false) },
		UpdateFunc: func(_, o any) { note(o, false) },
		DeleteFunc: func(o any) {
			if tombstone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				missed(tombstone.Obj)
				return
			}
			note(o, true)
		},
	}
}
