package v1alpha1

import (
	"testing"
	"time"

	"karve.sh/karve/pkg/nodecontract"
)

func TestResource(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sharing Sharing
		want    string
	}{
		"time-slicing renames the resource by default": {Sharing{Strategy: StrategyTimeSlicing}, "nvidia.com/gpu.shared"},
		"time-slicing keeps the name on request":       {Sharing{Strategy: StrategyTimeSlicing, ResourceName: ResourceGPU}, "nvidia.com/gpu"},
		"the default can be explicit":                  {Sharing{Strategy: StrategyTimeSlicing, ResourceName: ResourceGPUShared}, "nvidia.com/gpu.shared"},
		"whole GPUs have their own name":               {Sharing{Strategy: StrategyNone}, "nvidia.com/gpu"},
		"whole GPUs never have the shared name":        {Sharing{Strategy: StrategyNone, ResourceName: ResourceGPUShared}, "nvidia.com/gpu"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := c.sharing.Resource(); got != c.want {
				t.Errorf("Resource() = %q, want %q", got, c.want)
			}
		})
	}
}

func TestReplicasFor(t *testing.T) {
	t.Parallel()
	shared := Sharing{
		Strategy: StrategyTimeSlicing,
		Replicas: new(int32(10)),
		Overrides: []ReplicasOverride{
			{GPUName: "a10g", Replicas: 20},
			{GPUName: "v100", Replicas: 1},
		},
	}
	whole := shared
	whole.Strategy = StrategyNone
	for name, c := range map[string]struct {
		sharing Sharing
		gpu     string
		want    int64
	}{
		"a GPU without an override has the default replicas": {shared, "t4", 10},
		"a GPU without a name has the default replicas":      {shared, "", 10},
		"an override wins":                                          {shared, "a10g", 20},
		"an override of one disables sharing":                       {shared, "v100", 1},
		"names are case-sensitive":                                  {shared, "A10G", 10},
		"whole GPUs have one replica whatever the other fields are": {whole, "a10g", 1},
		"unset replicas mean one":                                   {Sharing{Strategy: StrategyTimeSlicing}, "t4", 1},
		"an override of zero means one":                             {Sharing{Strategy: StrategyTimeSlicing, Overrides: []ReplicasOverride{{GPUName: "t4"}}}, "t4", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := c.sharing.ReplicasFor(c.gpu); got != c.want {
				t.Errorf("ReplicasFor(%q) = %d, want %d", c.gpu, got, c.want)
			}
		})
	}
}

func TestRefusesAboveOne(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sharing Sharing
		want    bool
	}{
		"allowed by default":                   {Sharing{Strategy: StrategyTimeSlicing}, false},
		"allowed explicitly":                   {Sharing{Strategy: StrategyTimeSlicing, RequestsAboveOne: RequestsAboveOneAllow}, false},
		"refused explicitly":                   {Sharing{Strategy: StrategyTimeSlicing, RequestsAboveOne: RequestsAboveOneRefuse}, true},
		"always refused with DRA":              {Sharing{Strategy: StrategyTimeSlicing, Backend: BackendDRA}, true},
		"several instances with DRA":           {Sharing{Strategy: StrategyMIG, Backend: BackendDRA}, false},
		"refused of shared instances with DRA": {Sharing{Strategy: StrategyMIG, Backend: BackendDRA, Replicas: new(int32(2))}, true},
		"refused of shares of NVIDIA's driver": {Sharing{Strategy: StrategyTimeSlicing, Backend: BackendNVIDIADRA}, true},
		"several GPUs of NVIDIA's driver":      {Sharing{Strategy: StrategyNone, Backend: BackendNVIDIADRA}, false},
		"always refused with MPS":              {Sharing{Strategy: StrategyMPS}, true},
		"several whole GPUs are never refused": {Sharing{Strategy: StrategyNone, RequestsAboveOne: RequestsAboveOneRefuse}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := c.sharing.RefusesAboveOne(); got != c.want {
				t.Errorf("RefusesAboveOne() = %t, want %t", got, c.want)
			}
		})
	}
}

func TestIdleDuration(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		idleAfter string
		want      time.Duration
		never     bool
		wantErr   bool
	}{
		"seconds":                         {idleAfter: "30s", want: 30 * time.Second},
		"several units":                   {idleAfter: "1h30m", want: 90 * time.Minute},
		"zero removes a machine at once":  {idleAfter: "0s"},
		"empty is the default":            {idleAfter: "", want: 5 * time.Minute},
		"never":                           {idleAfter: "Never", never: true},
		"a bare number is an error":       {idleAfter: "5", wantErr: true},
		"a negative duration is an error": {idleAfter: "-5m", wantErr: true},
		"days are an error":               {idleAfter: "1d", wantErr: true},
		"an overflow is an error":         {idleAfter: "9999999999h", wantErr: true},
		"Never is case-sensitive":         {idleAfter: "never", wantErr: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, never, err := Consolidation{IdleAfter: c.idleAfter}.IdleDuration()
			if got != c.want || never != c.never || (err != nil) != c.wantErr {
				t.Errorf("IdleDuration() = %v, %t, %v; want %v, %t, error %t", got, never, err, c.want, c.never, c.wantErr)
			}
		})
	}
}

func TestReplicasRange(t *testing.T) {
	t.Parallel()
	ranged := Sharing{
		Strategy: StrategyTimeSlicing, Replicas: new(int32(10)), MaxReplicas: new(int32(40)), Overrides: []ReplicasOverride{{GPUName: "a10g", Replicas: 20}},
	}
	fixed, whole, odd := ranged, ranged, ranged
	fixed.MaxReplicas, whole.Strategy, odd.MaxReplicas = nil, StrategyNone, new(int32(5))
	for name, c := range map[string]struct {
		sharing     Sharing
		gpu         string
		least, most int64
	}{
		"a range":                                   {ranged, "t4", 10, 40},
		"an override has no range":                  {ranged, "a10g", 20, 20},
		"no range without maxReplicas":              {fixed, "t4", 10, 10},
		"whole GPUs have no range":                  {whole, "t4", 1, 1},
		"no range if maxReplicas is below replicas": {odd, "t4", 10, 10},
	} {
		if least, most := c.sharing.ReplicasRange(c.gpu); least != c.least || most != c.most {
			t.Errorf("%s: %d to %d, want %d to %d", name, least, most, c.least, c.most)
		}
	}
}

func TestMPSSettings(t *testing.T) {
	t.Parallel()
	defaults := nodecontract.MPS{MemoryOvercommitPercent: 100, Users: "Any"}
	for name, c := range map[string]struct {
		sharing Sharing
		want    nodecontract.MPS
	}{
		"none without the strategy": {Sharing{Strategy: StrategyTimeSlicing, MPS: &MPSSharing{}}, nodecontract.MPS{}},
		"defaults":                  {Sharing{Strategy: StrategyMPS}, defaults},
		"defaults of an empty mps":  {Sharing{Strategy: StrategyMPS, MPS: &MPSSharing{}}, defaults},
		"all set": {
			Sharing{Strategy: StrategyMPS, MPS: &MPSSharing{MemoryOvercommitPercent: new(int32(150)), ActiveThreadPercent: new(int32(40)), Users: MPSUsersSingle}},
			nodecontract.MPS{MemoryOvercommitPercent: 150, ActiveThreadPercent: 40, Users: "Single"},
		},
	} {
		if got := c.sharing.MPSSettings(); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestOldGPUsCannotBeSharedWithMPS(t *testing.T) {
	t.Parallel()
	mps := Sharing{Strategy: StrategyMPS, Replicas: new(int32(10))}
	sliced, overridden, whole := mps, mps, mps
	sliced.Strategy = StrategyTimeSlicing
	overridden.Overrides = []ReplicasOverride{{GPUName: "m60", Replicas: 2}}
	whole.Overrides = []ReplicasOverride{{GPUName: "m60", Replicas: 1}}
	for name, c := range map[string]struct {
		sharing    Sharing
		gpu        string
		can, wrong bool
	}{
		"a T4":                          {mps, "t4", true, false},
		"a V100":                        {mps, "v100", true, false},
		"an M60":                        {mps, "m60", false, false},
		"an M60 with time-slicing":      {sliced, "m60", true, false},
		"an M60 that an override names": {overridden, "m60", false, true},
		"an M60 that is not shared":     {whole, "m60", true, false},
	} {
		if can, err := c.sharing.CanShare(c.gpu), c.sharing.OverridesError(); can != c.can || (err != nil) != c.wrong {
			t.Errorf("%s: %t, %v", name, can, err)
		}
	}
}

func TestBackendsAreServedByDrivers(t *testing.T) {
	t.Parallel()
	for backend, want := range map[Backend]struct {
		driver, promised, resource string
	}{
		"":                  {"", "", ResourceGPUShared},
		BackendDevicePlugin: {"", "", ResourceGPUShared},
		BackendDRA:          {"gpu.karve.sh", "DRA", ResourceGPUShared},
		BackendNVIDIADRA:    {"gpu.nvidia.com", "NVIDIADRA", ResourceGPU},
	} {
		s := Sharing{Strategy: StrategyTimeSlicing, Replicas: new(int32(4)), Backend: backend}
		if s.DRADriver() != want.driver || s.UsesDRA() != (want.driver != "") || s.PromisedBackend() != want.promised || s.Resource() != want.resource {
			t.Errorf("%q: driver %q, promised %q, resource %q, want %v", backend, s.DRADriver(), s.PromisedBackend(), s.Resource(), want)
		}
	}
}
