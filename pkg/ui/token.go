package ui

import (
	"crypto/subtle"
	"net/http"
	"strings"
)

// RequireToken returns an Admit for [Config] that lets requests with a bearer token pass. The page finds the token in the fragment of its address, which
// browsers send in no request. It sends the token in a header. No other page can make a browser send that header, and unlike a cookie, it is not sent
// to other ports of this computer.
func RequireToken(token string) func(http.Handler) (http.Handler, error) {
	return func(next http.Handler) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if !ok || subtle.ConstantTimeCompare([]byte(given), []byte(token)) == 0 {
				http.Error(w, "The token is not the one of this server: open the URL that kubectl karve ui has printed.", http.StatusForbidden)
				return
			}
			next.ServeHTTP(w, r)
		}), nil
	}
}
