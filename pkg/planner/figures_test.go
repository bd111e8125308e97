package planner_test

import (
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest"
)

// shared is where the catalogue of EC2 and the openb trace are, beside a checkout.
const shared = "../../../shared/data/"

// offer is one instance type, or one in a zone at a capacity type, with what the generators ask of it.
type offer struct {
	planner.Offering
	gpu string
	mib int64
}

// catalogue reads the priced amd64 types of the families, or of all, each GPU shared by the given number of replicas. DaemonSets take
// 180m CPU, 200 MiB and 5 pods.
func catalogue(tb testing.TB, replicas int64, families ...string) []offer {
	tb.Helper()
	data, err := os.ReadFile(shared + "ec2-gpu-instance-types.json")
	if err != nil {
		tb.Skip("no catalogue beside this checkout")
	}
	var file struct {
		Types []struct {
			Name, Family, Arch string
			Legacy             bool
			GPU                struct {
				Name      string
				Count     int
				Memory    int64 `json:"memory_mib_per_gpu"`
				Partition float64
			}
			Alloc struct {
				CPU  int64 `json:"cpu_milli"`
				MiB  int64 `json:"memory_mib"`
				Pods int64
			} `json:"karpenter_allocatable"`
			Price *float64 `json:"price_usd_hour_us_east_1"`
		} `json:"instance_types"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		tb.Fatal(err)
	}
	var out []offer
	for _, t := range file.Types {
		if t.Price == nil || t.Legacy || t.GPU.Partition < 1 || t.GPU.Count == 0 || t.Arch != "amd64" || len(families) > 0 && !slices.Contains(families, t.Family) {
			continue
		}
		m := plantest.Machine{
			Type: t.Name, VCPU: t.Alloc.CPU / 1000, MilliCPU: t.Alloc.CPU - 180, MiB: t.Alloc.MiB - 200, Pods: t.Alloc.Pods - 5,
			GPUs: int64(t.GPU.Count), GPUMiB: t.GPU.Memory, Price: planner.MicroUSD(math.Round(*t.Price * 1e6)),
		}
		out = append(out, offer{m.Offering(0, "", "on-demand", m.Price, replicas), t.GPU.Name, t.GPU.Memory})
	}
	return out
}

// zoned spreads types over zones, on demand and as spot at 30 to 75 % of the price.
func zoned(types []offer, zones int, seed int64) []offer {
	r := rand.New(rand.NewSource(seed))
	var out []offer
	for _, t := range types {
		base := 0.30 + 0.35*r.Float64()
		for z := range zones {
			od := t
			od.Zone = fmt.Sprintf("az%d", z+1)
			spot := od
			spot.CapacityType = "spot"
			spot.Price = planner.MicroUSD(math.Round(float64(t.Price) * (base + 0.10*r.Float64())))
			out = append(out, od, spot)
		}
	}
	return out
}

func snapshotOf(offers []offer) planner.Snapshot {
	s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("gpu-shared")}}
	for _, o := range offers {
		s.Offerings = append(s.Offerings, o.Offering)
	}
	return s
}

// workload draws pods in classes of falling size, of one replica each; with device memory, and a third of the classes tied to one kind of GPU, some of them to a
// zone or to on-demand machines, where stated and tied say so.
func workload(seed int64, classes, pods int, offers []offer, stated, tied bool) planner.Snapshot {
	r := rand.New(rand.NewSource(seed))
	cpu := []int64{250, 500, 1000, 1500, 2000, 3000, 4000, 6000, 8000}
	perCPU := []int64{1024, 2048, 3072, 4096, 6144, 8192}
	device := []int64{1024, 2048, 3072, 4096, 5120, 6144, 8192, 10240, 12288, 15000}
	kinds := map[string]bool{}
	for _, o := range offers {
		kinds[o.gpu] = true
	}
	gpus := slices.Sorted(maps.Keys(kinds))
	weights, sum := make([]float64, classes), 0.0
	for i := range weights {
		weights[i] = 1 / math.Pow(float64(i+1), 0.8)
		sum += weights[i]
	}
	s := snapshotOf(offers)
	left := pods
	for i := range classes {
		n := max(1, int(math.Round(weights[i]/sum*float64(pods))))
		if i == classes-1 || n > left {
			n = left
		}
		left -= n
		if n <= 0 {
			continue
		}
		c := cpu[r.Intn(len(cpu))]
		mib := c * perCPU[r.Intn(len(perCPU))] / 1000
		class := plantest.Class(s, fmt.Sprintf("c%02d", i), n, plantest.Request(c, mib, 1))
		if stated {
			class.GPUMemoryBytes = device[r.Intn(len(device))] * plantest.Mi
		}
		if tied && r.Float64() < 0.33 {
			gpu, zone := gpus[r.Intn(len(gpus))], ""
			if r.Float64() < 0.4 {
				zone = fmt.Sprintf("az%d", 1+r.Intn(3))
			}
			onDemand := r.Float64() < 0.3
			var admitted []int
			ok := false
			for j, o := range offers {
				if o.gpu == gpu && (zone == "" || o.Zone == "" || o.Zone == zone) && (!onDemand || o.CapacityType != "spot") {
					admitted = append(admitted, j)
					ok = ok || o.mib*plantest.Mi >= class.GPUMemoryBytes && o.Free.MilliCPU >= c && o.Free.MemoryBytes >= mib*plantest.Mi
				}
			}
			if ok {
				class.Offerings = admitted
			}
		}
		s.Classes = append(s.Classes, class)
	}
	return s
}

// openb reads the pods of the openb trace that share GPUs, in the order of their arrival: those from the given place on. A pod's share of a GPU is
// device memory of 16 GiB, replicas of one GPU of 20, or one replica.
func openb(tb testing.TB, offers []offer, how string, from, count int) planner.Snapshot {
	tb.Helper()
	f, err := os.Open(shared + "openb-shared-pods.csv.gz")
	if err != nil {
		tb.Skip("no trace beside this checkout")
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	rows, err := csv.NewReader(z).ReadAll()
	if err != nil {
		tb.Fatal(err)
	}
	type shape struct{ cpu, mib, replicas, device int64 }
	counts := map[shape]int{}
	var order []shape
	rows = rows[1:]
	for _, row := range rows[from:min(len(rows), from+count)] {
		n := func(i int) int64 { v, _ := strconv.ParseInt(row[i], 10, 64); return v }
		x := shape{n(1), n(2), 1, 0}
		switch how {
		case "memory":
			x.device = (n(4)*16384 + 999) / 1000 * plantest.Mi
		case "replicas":
			x.replicas, x.device = (n(4)+49)/50, 1
		}
		if counts[x]++; counts[x] == 1 {
			order = append(order, x)
		}
	}
	s := snapshotOf(offers)
	for i, x := range order {
		c := plantest.Class(s, fmt.Sprintf("s%02d", i), counts[x], plantest.Request(x.cpu, x.mib, x.replicas))
		c.GPUMemoryBytes = x.device
		s.Classes = append(s.Classes, c)
	}
	return s
}

// busy is the time that the processor spent on this process: that of a machine shared with others says nothing.
func busy() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measure builds each snapshot once and reports mean and worst gap, in percent, and the mean time.
func measure(b *testing.B, search planner.Search, snapshots ...planner.Snapshot) {
	b.Helper()
	for b.Loop() {
		var sum, worst, price float64
		var took, longest, first time.Duration
		for i, s := range snapshots {
			start := busy()
			search.First = func(planner.Plan) { first = max(first, busy()-start) }
			p := search.Build(s)
			d := busy() - start
			took, longest = took+d, max(longest, d)
			if err := planner.Check(s, p); err != nil {
				b.Fatal(err)
			}
			gap := 100 * float64(p.Price-p.Bound) / float64(max(1, p.Bound))
			if testing.Verbose() {
				b.Logf("%d: price %.3f bound %.3f gap %.2f %v", i, float64(p.Price)/1e6, float64(p.Bound)/1e6, gap, d.Round(time.Millisecond))
			}
			sum, worst, price = sum+gap, max(worst, gap), price+float64(p.Price)/1e6
		}
		n := float64(len(snapshots))
		b.ReportMetric(sum/n, "%gap")
		b.ReportMetric(worst, "%worst")
		b.ReportMetric(price/n, "$/h")
		b.ReportMetric(float64(took.Milliseconds())/n, "ms/plan")
		b.ReportMetric(float64(first.Milliseconds()), "ms-first")
		b.ReportMetric(float64(longest.Milliseconds()), "ms-worst")
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkFigures measures the rows that say how good plans are; run it with -benchtime=1x, and -v for each snapshot.
func BenchmarkFigures(b *testing.B) {
	seeds := int64(10)
	if n, err := strconv.ParseInt(os.Getenv("SEEDS"), 10, 64); err == nil {
		seeds = n
	}
	several := func(f func(seed int64) planner.Snapshot) []planner.Snapshot {
		var out []planner.Snapshot
		for seed := range seeds {
			out = append(out, f(seed+1))
		}
		return out
	}
	var search planner.Search
	if e, err := strconv.ParseInt(os.Getenv("EFFORT"), 10, 64); err == nil {
		search.Effort = e
	}
	g4 := catalogue(b, 10, "g4dn")
	g6 := catalogue(b, 10, "g4dn", "g5", "g6", "g6e", "gr6")
	g7 := catalogue(b, 10, "g4dn", "g5", "g6", "g6e", "gr6", "g7e")
	all := catalogue(b, 10)
	for _, x := range []struct {
		name          string
		classes, pods int
		offers        []offer
		extra         bool
	}{
		{"50 in 5 on g4dn", 5, 50, g4, false},
		{"300 in 20", 20, 300, g6, true},
		{"1000 in 20 plain", 20, 1000, g6, false},
		{"1000 in 20", 20, 1000, g6, true},
		{"10000 in 50", 50, 10_000, g6, true},
		{"10000 in 50 on all", 50, 10_000, all, true},
		{"10000 in 50 on 198 offerings", 50, 10_000, zoned(g6, 3, 7), true},
		{"10000 in 50 on 624 offerings", 50, 10_000, zoned(g7, 8, 7), true},
		{"10000 in 50 on all zoned", 50, 10_000, zoned(all, 3, 7), true},
	} {
		b.Run(x.name, func(b *testing.B) {
			measure(b, search, several(func(seed int64) planner.Snapshot {
				return workload(seed, x.classes, x.pods, x.offers, x.extra, x.extra)
			})...)
		})
	}
	b.Run("100000 in 50", func(b *testing.B) { measure(b, search, workload(1, 50, 100_000, g6, true, true)) })
	for _, x := range []struct {
		how      string
		replicas int64
	}{{"memory", 20}, {"replicas", 20}, {"count", 4}, {"count", 10}} {
		b.Run(fmt.Sprintf("openb %s %d", x.how, x.replicas), func(b *testing.B) {
			measure(b, search, openb(b, catalogue(b, x.replicas, "g4dn"), x.how, 0, 5000),
				openb(b, catalogue(b, x.replicas, "g4dn", "g5", "g6", "g6e", "gr6"), x.how, 0, 5000))
		})
	}
	b.Run("openb windows of 50", func(b *testing.B) {
		var windows []planner.Snapshot
		for i := range 15 {
			windows = append(windows, openb(b, catalogue(b, 20, "g4dn", "g5", "g6", "g6e", "gr6"), "memory", i*205, 50))
		}
		measure(b, search, windows...)
	})
}
