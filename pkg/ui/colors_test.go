package ui

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"testing"
)

// visions are how people see colors, as matrices on linear RGB: all colors, and without the cones for red, green or blue (Machado, Oliveira and Fernandes,
// A Physiologically-based Model for Simulation of Color Vision Deficiency, 2009).
var visions = map[string][3][3]float64{
	"all colors": {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
	"no red":     {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
	"no green":   {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
	"no blue":    {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}},
}

type triple [3]float64

func times(m [3][3]float64, v triple) triple {
	var r triple
	for i := range 3 {
		for j := range 3 {
			r[i] += m[i][j] * v[j]
		}
	}
	return r
}

// seen returns a color such as #0072b2 in CIELAB, with a vision.
func seen(t testing.TB, color string, vision [3][3]float64) triple {
	t.Helper()
	var c [3]int
	if _, err := fmt.Sscanf(color, "#%02x%02x%02x", &c[0], &c[1], &c[2]); err != nil {
		t.Fatalf("%s: %v", color, err)
	}
	var linear triple
	for i := range 3 {
		if linear[i] = float64(c[i]) / 255; linear[i] <= 0.04045 {
			linear[i] /= 12.92
		} else {
			linear[i] = math.Pow((linear[i]+0.055)/1.055, 2.4)
		}
	}
	linear = times(vision, linear)
	for i := range 3 {
		linear[i] = min(1, max(0, linear[i]))
	}
	xyz := times([3][3]float64{{0.4124564, 0.3575761, 0.1804375}, {0.2126729, 0.7151522, 0.0721750}, {0.0193339, 0.1191920, 0.9503041}}, linear)
	white := triple{0.95047, 1, 1.08883}
	var f triple
	for i := range 3 {
		if f[i] = xyz[i] / white[i]; f[i] > 0.008856 {
			f[i] = math.Cbrt(f[i])
		} else {
			f[i] = 7.787*f[i] + 16.0/116
		}
	}
	return triple{116*f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])}
}

func distance(a, b triple) float64 {
	return math.Sqrt((a[0]-b[0])*(a[0]-b[0]) + (a[1]-b[1])*(a[1]-b[1]) + (a[2]-b[2])*(a[2]-b[2]))
}

// apart is the least distance of two colors in CIELAB that a small cell shows. A distance of 2.3 can just be noticed side by side.
const apart = 20

// TestColorsCanBeToldApart compares the colors of namespaces, and that of the others, for each vision and theme.
func TestColorsCanBeToldApart(t *testing.T) {
	t.Parallel()
	css, err := os.ReadFile("web/style.css")
	if err != nil {
		t.Fatal(err)
	}
	themes := regexp.MustCompile(`(?s):root(\[data-theme="dark"\])? \{(.*?)\n\}`).FindAllStringSubmatch(string(css), -1)
	if len(themes) != 2 {
		t.Fatalf("there are %d themes", len(themes))
	}
	colors := map[string]string{}
	for i, theme := range themes { // The dark theme changes some of the light one's colors.
		for _, m := range regexp.MustCompile(`--(c\d|other|card): (#[0-9a-f]{6})`).FindAllStringSubmatch(theme[2], -1) {
			colors[m[1]] = m[2]
		}
		if len(colors) != 9 {
			t.Fatalf("the colors are %v", colors)
		}
		for vision, m := range visions {
			for a, x := range colors {
				for b, y := range colors {
					if d := distance(seen(t, x, m), seen(t, y, m)); a < b && d < apart {
						t.Errorf("theme %d, %s: %s (%s) and %s (%s) are only %.1f apart", i, vision, a, x, b, y, d)
					}
				}
			}
		}
	}
}
