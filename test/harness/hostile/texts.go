package hostile

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// text is a text that harms programs that read it carelessly. vary gives equally bad ones that differ, and is nil if there is only one.
type text struct {
	is   string
	vary func(i int) string
}

func only(is string) text { return text{is: is} }

func varied(vary func(i int) string) text { return text{vary(0), vary} }

func (t text) at(i int) string {
	if t.vary == nil {
		return t.is
	}
	return t.vary(i)
}

// texts are bad texts by what they look like. Each group is tried mostly where the text was of that look before.
var texts = map[string][]text{
	"quantity": append(ones(
		"1e2000000000", "0e2000000000", "1e-2000000000", "-1e2000000000", "1e2147483647", "1e2147483648", "1e9223372036854775807", "0.0e1999999999", "1e400", "1e-400", "1e19",
		"9223372036854775807", "9223372036854775808", "-9223372036854775808", "9223372036854775807Ei", "18446744073709551616", "1n", "1e-9", "-1", "-0", "0x10", "1_0", "NaN", "Infinity", "1e", "٣",
		"0."+strings.Repeat("0", 10_000)+"1", strings.Repeat("9", 10_000)+"Gi", strings.Repeat("9", 200_000)+"."+strings.Repeat("9", 50_000),
	), varied(func(i int) string { return fmt.Sprintf("%de%d", 1+i, 1_000_000_000+i) })),
	"time": ones(
		"9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "0000-01-01T00:00:00Z", "1677-09-21T00:12:43Z", "2262-04-11T23:47:17Z", "292277026596-12-04T15:30:08Z", "2026-03-01T12:00:00+24:00",
		"2562047h47m16.854775807s", "-2562047h47m16.854775808s", "9999999h", strings.Repeat("9", 10_000)+"h", strings.Repeat("1ns", 80_000), "0s", "-1s", "* * * * *", "0 0 30 2 *", "@every 1ns",
	),
	"cel": {
		nested(30, 2), nested(4, 60), nested(9, 9),
		filled(celLongest, backtracking), filled(celLong, backtracking), filled(celLongest, comparing), filled(celLong, comparing),
		filled(celLong, func(i int) string { return fmt.Sprintf(`quantity("%de18").isGreaterThan(quantity("1")) && `, 1+i%9) }),
		filled(celLongest, func(i int) string { return fmt.Sprintf("%d + ", i) }),
		varied(func(i int) string {
			return fmt.Sprintf(`%s"%d".size() >= 0%s`, strings.Repeat("(", 200), i, strings.Repeat(")", 200))
		}),
		varied(func(i int) string {
			return fmt.Sprintf("device.driver != %q", strings.Repeat("x", 10_000)+fmt.Sprint(i))
		}),
		varied(func(i int) string { return fmt.Sprintf("[1,2,3].all(x, [%d].exists(y, y != x + 9))", i) }),
		only("true"), only("1 / 0 == 1"), only("dyn(device).nothing"), only("device.attributes"),
	},
	"json": {
		only("{}"), only(`{"a":1e2000000000}`), only(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}`),
		only(strings.Repeat(`{"a":`, 9_000) + "1" + strings.Repeat("}", 9_000)), only(strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)),
		varied(func(i int) string { return `{"a":"` + strings.Repeat("x", 10_000) + fmt.Sprint(i) + `"}` }), only(`{"a":1,"a":{"a":[1,2]}}`), only("null"), only("[]"),
		only("a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d,*d]"),
	},
	"name": append(ones(
		"", "missing", "sane", "default", "*", "a", "Exists", "In", "NotIn", "Gt", "DoNotSchedule", "Any", "kubernetes.io/hostname", "topology.kubernetes.io/zone", "karpenter.sh/nodepool", "example.com/none",
		SaneMachine, SaneNode, "us-east-1a", "g4dn.xlarge", "Rollout", "argoproj.io", "../../etc/passwd", "a/b/c", "%s%n%!d(x)", "system-cluster-critical", "nvidia.com/gpu", "gpu.nvidia.com",
		strings.Repeat("v", 63), strings.Repeat("v", 253), strings.Repeat("v.", 126)+"v",
	), varied(func(i int) string { return fmt.Sprintf("v%d", i) }), varied(func(i int) string { return strings.Repeat("v", 55) + fmt.Sprint(i) })),
	"other": {
		only("\x1b[2J\x1b[31mgone\x07"), only("\u202edrawkcab\u2066"), only("a\x00b"), only("\xff\xfe\xed\xa0\x80"), only("a\r\nb\tc\u2028"), only(strings.Repeat("🦣", 1_000)),
		only(strings.Repeat("a,", 100_000)), only(strings.Repeat("\n", 200_000)),
		sized(1 << 10), sized(10 << 10), sized(60 << 10), sized(250 << 10), sized(1400 << 10),
	},
}

func ones(all ...string) []text {
	texts := make([]text, len(all))
	for i := range all {
		texts[i] = only(all[i])
	}
	return texts
}

// sized returns texts with a number of bytes.
func sized(bytes int) text {
	return varied(func(i int) string { return strings.Repeat("x", bytes-8) + fmt.Sprintf("%08d", i) })
}

// Sizes of expressions: the API server accepts 10 KiB, and Karve evaluates 1 KiB. What makes an expression differ from others fits too.
const (
	celLongest = 10<<10 - 100
	celLong    = 1<<10 - 100
)

// filled returns CEL expressions with a size that consist of parts.
func filled(size int, part func(i int) string) text {
	return varied(func(salt int) string {
		var b strings.Builder
		for i := 0; ; i++ {
			p := part(salt*1000 + i)
			if b.Len()+len(p)+10 > size {
				break
			}
			b.WriteString(p)
		}
		if strings.HasSuffix(b.String(), "+ ") {
			return b.String() + "1 > 0"
		}
		return b.String() + "true"
	})
}

func backtracking(i int) string {
	return fmt.Sprintf(`"%s".matches("^(a+)+$%d") || `, strings.Repeat("a", 400), i)
}

func comparing(i int) string {
	return fmt.Sprintf(`device.attributes["gpu.karve.sh"].architecture != "x%d" && `, i)
}

// nested returns CEL expressions with loops in loops over lists.
func nested(length, depth int) text {
	return varied(func(salt int) string {
		list := strings.TrimSuffix(strings.Repeat("1,", length), ",")
		inner := fmt.Sprintf("%d != -1", salt)
		for i := range depth {
			inner = fmt.Sprintf("[%s].all(x%d, %s)", list, i, inner)
		}
		return inner
	})
}

var quantities = regexp.MustCompile(`^[-+]?[0-9.]+(|m|k|Ki|M|Mi|G|Gi|e[-0-9]+)$`)

// look returns which group of texts a text looks like.
func look(text string) string {
	_, notDuration := time.ParseDuration(text)
	_, notTime := time.Parse(time.RFC3339, text)
	switch {
	case strings.Contains(text, "device."):
		return "cel"
	case strings.HasPrefix(text, "{"):
		return "json"
	case quantities.MatchString(text):
		return "quantity"
	case notDuration == nil || notTime == nil:
		return "time"
	}
	return "name"
}
