package aws

import (
	"cmp"
	"encoding/json"
	"hash/fnv"
	"slices"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	awspricing "github.com/aws/karpenter-provider-aws/pkg/providers/pricing"
)

var pricingActions = map[string]action{"GetProducts": call((*Server).getProducts)}

// SetPrice sets the on-demand price of a type, in dollars per hour. The default is the price that Karpenter's AWS provider ships for the region.
func (s *Server) SetPrice(instanceType string, dollars float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prices[instanceType] = dollars
}

// SetSpotPrice sets the spot price of a type in a zone, in dollars per hour.
func (s *Server) SetSpotPrice(instanceType, zone string, dollars float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prices[instanceType+" "+zone] = dollars
}

// onDemandPrice returns 0 for a type without a price in the region. Such types exist in EC2 too.
func (s *Server) onDemandPrice(m machine) float64 {
	if set, ok := s.prices[m.name()]; ok {
		return set
	}
	return awspricing.InitialOnDemandPricesAWS[s.config.Region][m.Info.InstanceType]
}

// spotPrice returns the price that was set. Otherwise it returns a made-up one: between 30% and 50% of the on-demand price, different in each zone, and
// always the same.
func (s *Server) spotPrice(m machine, zone string) float64 {
	if set, ok := s.prices[m.name()+" "+zone]; ok {
		return set
	}
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(m.name() + zone))
	return s.onDemandPrice(m) * float64(300+sum.Sum32()%200) / 1000
}

func (s *Server) describeSpotPriceHistory(in *ec2.DescribeSpotPriceHistoryInput) (*ec2.DescribeSpotPriceHistoryOutput, error) {
	var all []ec2types.SpotPrice
	for _, name := range sortedKeys(s.machines) {
		m := s.machines[name]
		if !m.offered(ec2types.UsageClassTypeSpot) || len(in.InstanceTypes) > 0 && !slices.Contains(in.InstanceTypes, m.Info.InstanceType) {
			continue
		}
		for _, zone := range s.zones(m) {
			price := s.spotPrice(m, zone)
			if price == 0 || value(in.AvailabilityZone) != "" && *in.AvailabilityZone != zone {
				continue
			}
			all = append(all, ec2types.SpotPrice{
				InstanceType: m.Info.InstanceType, AvailabilityZone: &zone, AvailabilityZoneId: new(zoneID(zone)),
				ProductDescription: ec2types.RIProductDescriptionLinuxUnix, SpotPrice: new(strconv.FormatFloat(price, 'f', 6, 64)), Timestamp: new(s.now()),
			})
		}
	}
	found, err := selected(all, in.Filters, func(p ec2types.SpotPrice) property {
		return fields(map[string][]string{
			"instance-type": {string(p.InstanceType)}, "availability-zone": {*p.AvailabilityZone}, "product-description": {string(p.ProductDescription)},
		})
	})
	if err != nil {
		return nil, err
	}
	found, next, err := page(found, in.MaxResults, 300, in.NextToken)
	return &ec2.DescribeSpotPriceHistoryOutput{SpotPriceHistory: found, NextToken: next}, err
}

// getProducts supports only the fields of the price list that are needed to find on-demand prices. Shared and bare-metal machines are different
// products.
func (s *Server) getProducts(in *pricing.GetProductsInput) (*pricing.GetProductsOutput, error) {
	asked := map[string]string{}
	for _, f := range in.Filters {
		asked[value(f.Field)] = value(f.Value)
	}
	products := []string{}
	for _, name := range sortedKeys(s.machines) {
		m := s.machines[name]
		family, tenancy := "Compute Instance", "Shared"
		if value(m.Info.BareMetal) {
			family, tenancy = "Compute Instance (bare metal)", "Dedicated"
		}
		attributes := map[string]string{
			"instanceType": name, "regionCode": s.config.Region, "serviceCode": "AmazonEC2", "preInstalledSw": "NA", "operatingSystem": "Linux",
			"capacitystatus": "Used", "marketoption": "OnDemand", "tenancy": tenancy, "productFamily": family,
		}
		matches := true
		for field, want := range asked {
			matches = matches && attributes[field] == want
		}
		price := s.onDemandPrice(m)
		if !matches || price == 0 {
			continue
		}
		product, err := json.Marshal(map[string]any{
			"product": map[string]any{"sku": name, "productFamily": family, "attributes": attributes},
			"terms": map[string]any{"OnDemand": map[string]any{name + ".term": map[string]any{"priceDimensions": map[string]any{
				name + ".term.hour": map[string]any{"unit": "Hrs", "pricePerUnit": map[string]string{"USD": strconv.FormatFloat(price, 'f', 10, 64)}},
			}}}},
		})
		if err != nil {
			return nil, err
		}
		products = append(products, string(product))
	}
	products, next, err := page(products, in.MaxResults, 60, in.NextToken)
	return &pricing.GetProductsOutput{PriceList: products, NextToken: next, FormatVersion: new(cmp.Or(value(in.FormatVersion), "aws_v1"))}, err
}
