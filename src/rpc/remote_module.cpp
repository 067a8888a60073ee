// See remote_module.h.
#include "hasten/rpc/remote_module.h"

#include <charconv>

#include "hasten/core/error.h"

namespace hasten::rpc {

namespace detail {
std::pair<To, std::string> parse_remote_device(const std::string& place) {
  const size_t slash = place.find('/');
  const std::string worker = place.substr(0, slash),
                    device = slash == std::string::npos ? "cpu" : place.substr(slash + 1);
  if (worker.empty() || device.empty() || device.find('/') != std::string::npos)
    throw UsageError({"rpc"}, "'", place,
                     "' is no place of a module; expected a worker and a device: ps/cpu, rank:1/cuda:0.");
  if (!worker.starts_with("rank:")) return {To(worker), device};
  int rank = -1;
  const auto [end, error] = std::from_chars(worker.data() + 5, worker.data() + worker.size(), rank);
  if (error != std::errc() || end != worker.data() + worker.size())
    throw UsageError({"rpc"}, "'", worker, "' names no rank; expected rank:1.");
  return {To(rank), device};
}
}  // namespace detail

}  // namespace hasten::rpc
