package v1alpha1

import (
	"testing"
	"time"
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
