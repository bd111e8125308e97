// Command nothing takes the place of Karve's programs where it does not matter what an image holds.
package main

func main() {}
