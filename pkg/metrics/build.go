package metrics

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"karve.sh/karve/pkg/version"
)

func registerBuild(r prometheus.Registerer) {
	g := promauto.With(r).NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "build_info", Help: "1, with the program's version."}, []string{"version", "revision", "goversion"})
	built := version.This()
	g.WithLabelValues(built.Version, cmp.Or(built.Revision, "unknown"), built.Go).Set(1)
}
