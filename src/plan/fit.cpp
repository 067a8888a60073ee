// See fit.h.
#include "hasten/plan/fit.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/text.h"

namespace hasten::plan {
namespace {

constexpr double kMissed = 0.1;

// Two factors, both at least 0, so that a x[0] + b x[1] is as near to 1 as it gets for all x.
std::array<double, 2> nearest_to_one(const std::vector<std::array<double, 2>>& rows) {
  double xx = 0, xy = 0, yy = 0, x1 = 0, y1 = 0;
  for (const auto& [x, y] : rows) {
    xx += x * x, xy += x * y, yy += y * y, x1 += x, y1 += y;
  }
  const double determinant = xx * yy - xy * xy;
  if (determinant > 1e-12 * xx * yy) {
    const double a = (x1 * yy - y1 * xy) / determinant, b = (y1 * xx - x1 * xy) / determinant;
    if (a > 0 && b >= 0) return {a, b};
    if (a <= 0) return {0, y1 / yy};
  }
  return {x1 / xx, 0};
}

void check_points(size_t count, bool good) {
  if (count < 2 || !good)
    throw UsageError({"plan"}, "a fit of ", count, " measured points", good ? "" : ", some of which are not above 0",
                     "; expected at least two, all above 0.");
}

std::string percent_of(double share) {
  return text(std::lround(100 * share), " %");
}

}  // namespace

ProductFit fit_products(const std::vector<ProductPoint>& points) {
  check_points(points.size(), std::all_of(points.begin(), points.end(), [](const ProductPoint& point) {
                 return point.m > 0 && point.k > 0 && point.n > 0 && point.seconds > 0;
               }));
  std::vector<std::array<double, 2>> rows;
  for (const ProductPoint& point : points) {
    const double rate = 2 * point.m * point.k * point.n / point.seconds;
    rows.push_back({rate, rate * (1 / point.m + 1 / point.k + 1 / point.n)});
  }
  auto [seconds_a_flop, small] = nearest_to_one(rows);
  // Without a part that grows with the size there is no rate of large products: the fastest point stands for it.
  if (seconds_a_flop <= 0) {
    seconds_a_flop = 1 / std::max_element(rows.begin(), rows.end())->at(0);
    small = 0;
  }
  ProductFit fit{1 / seconds_a_flop, small / seconds_a_flop};
  for (size_t i = 0; i < points.size(); ++i) {
    const double error = std::abs(seconds_a_flop * rows[i][0] + small * rows[i][1] - 1);
    fit.residual = std::max(fit.residual, error);
    if (error > kMissed)
      fit.missed.push_back(text(points[i].m, " x ", points[i].k, " x ", points[i].n, ": ", percent_of(error)));
  }
  return fit;
}

TransferFit fit_transfers(const std::vector<TransferPoint>& points) {
  check_points(points.size(), std::all_of(points.begin(), points.end(), [](const TransferPoint& point) {
                 return point.bytes > 0 && point.seconds > 0;
               }));
  std::vector<std::array<double, 2>> rows;
  for (const TransferPoint& point : points) rows.push_back({point.bytes / point.seconds, 1 / point.seconds});
  auto [seconds_a_byte, latency] = nearest_to_one(rows);
  if (seconds_a_byte <= 0) {
    seconds_a_byte = 1 / std::max_element(rows.begin(), rows.end())->at(0);
    latency = 0;
  }
  TransferFit fit{1 / seconds_a_byte, latency};
  for (size_t i = 0; i < points.size(); ++i) {
    const double error = std::abs(seconds_a_byte * rows[i][0] + latency * rows[i][1] - 1);
    fit.residual = std::max(fit.residual, error);
    if (error > kMissed) fit.missed.push_back(text(count_text(std::llround(points[i].bytes), "byte"), ": ",
                                                   percent_of(error)));
  }
  return fit;
}

}  // namespace hasten::plan
