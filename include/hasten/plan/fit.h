// Fits: constants of a machine from measured points, by least squares of relative errors.
//
// Short and long measurements count alike. Each fit keeps its largest residual, and names points that it misses.
#pragma once

#include <string>
#include <vector>

namespace hasten::plan {

/// A measured product of [m, k] by [k, n].
struct ProductPoint {
  double m = 0, k = 0, n = 0, seconds = 0;
};

struct ProductFit {
  double flops = 0;                      ///< a second, of large products
  double small_size_cost = 0;            ///< see Constants::small_size_cost
  double residual = 0;                   ///< largest relative error of a point
  std::vector<std::string> missed = {};  ///< points off by more than 10 %, as "64 x 64 x 64: 23 %"
};

/// Throws: UsageError for fewer than two points, or points that are not above 0.
ProductFit fit_products(const std::vector<ProductPoint>& points);

/// A measured transfer.
struct TransferPoint {
  double bytes = 0, seconds = 0;
};

struct TransferFit {
  double bandwidth = 0;  ///< bytes a second
  double latency_s = 0;
  double residual = 0;
  std::vector<std::string> missed = {};  ///< as "65536 bytes: 12 %"
};

/// Throws: UsageError for fewer than two points, or points that are not above 0.
TransferFit fit_transfers(const std::vector<TransferPoint>& points);

}  // namespace hasten::plan
