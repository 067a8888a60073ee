// Which part has a sample, and putting rows back in order; see concat.h.
#include "hasten/data/dataset/concat.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>

#include "data/origin.h"
#include "hasten/data/dataset/rows.h"

namespace hasten::data {

std::vector<detail::PartRequest> detail::part_requests(c10::ArrayRef<size_t> indices, const std::vector<size_t>& ends) {
  constexpr size_t kNone = static_cast<size_t>(-1);
  std::vector<size_t> request_of(ends.size(), kNone);
  std::vector<PartRequest> requests;
  for (size_t place = 0; place < indices.size(); ++place) {
    check_index(indices[place], ends.back(), "a concatenation");
    const auto part = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), indices[place]) - ends.begin());
    if (request_of[part] == kNone) {
      request_of[part] = requests.size();
      requests.push_back({part, {}, {}});
    }
    PartRequest& request = requests[request_of[part]];
    request.samples.push_back(indices[place] - (part == 0 ? 0 : ends[part - 1]));
    request.places.push_back(place);
  }
  if (requests.empty()) requests.push_back({0, {}, {}});
  return requests;
}

at::Tensor detail::ordered_rows(const std::vector<at::Tensor>& rows, const std::vector<PartRequest>& requests) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t given = rows[i].dim() == 0 ? 0 : static_cast<size_t>(rows[i].size(0));
    if (given != requests[i].places.size()) {
      throw_part_gave(requests[i].part, given, requests[i].places.size());
    }
    if (rows[i].sizes().slice(1) != rows[0].sizes().slice(1) || rows[i].scalar_type() != rows[0].scalar_type()) {
      throw DataError(kOrigin, "", "samples of part ", requests[0].part, " of a concatenation are ",
                      rows[0].scalar_type(), " [", join(rows[0].sizes().slice(1)), "], those of part ",
                      requests[i].part, " are ", rows[i].scalar_type(), " [", join(rows[i].sizes().slice(1)),
                      "], expected the same. Bring them to one dtype and shape with map().");
    }
  }
  const at::Tensor all = at::cat(rows);
  std::vector<size_t> order(static_cast<size_t>(all.size(0)));
  size_t row = 0;
  for (const PartRequest& request : requests) {
    for (const size_t place : request.places) order[place] = row++;
  }
  return gather_rows(all, order);
}

void detail::throw_no_parts() {
  throw UsageError(kOrigin, "a concatenation of no datasets. Give one at least.");
}

void detail::throw_part_of_unknown_size(size_t part) {
  throw UsageError(kOrigin, "part ", part, " of a concatenation does not know its size, so its samples have ",
                   "no positions. Concatenate datasets that do.");
}

void detail::throw_part_gave(size_t part, size_t given, size_t requested) {
  throw DataError(kOrigin, "", "part ", part, " of a concatenation gave ", given, " where ", requested,
                  " were asked for. A dataset gives one element or row a sample.");
}

}  // namespace hasten::data
