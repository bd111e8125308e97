package wording

import (
	"fmt"
	"strconv"
	"strings"
)

// USD formats micro-dollars as dollars, with three decimals or as many more as needed.
func USD(micro int64) string {
	s := strconv.FormatInt(micro/1e6, 10) + "." + fmt.Sprintf("%06d", micro%1e6)
	for range 3 {
		s = strings.TrimSuffix(s, "0")
	}
	return s
}
