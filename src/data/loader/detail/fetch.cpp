// The message of a failed fetch; see fetch.h.
#include "hasten/data/loader/detail/fetch.h"

#include <algorithm>
#include <exception>
#include <string>

#include "compat/exception_message.h"

namespace hasten::data {

namespace {

constexpr size_t kNamed = 8;  // more suspects than these are only counted

}  // namespace

void detail::throw_sample_error(const Origin& origin, const Indices& suspects, std::optional<size_t> num_samples) {
  const Indices named(suspects.begin(), suspects.begin() + std::min(suspects.size(), kNamed));
  const std::string which = suspects.size() == 1 ? text("sample ", suspects[0]) : text("samples ", join(named));
  const std::string more =
      suspects.size() > kNamed ? text(" and ", suspects.size() - kNamed, " more of this batch") : "";
  const std::string of = num_samples ? text(" of ", *num_samples) : "";
  std::string path;
  try {
    throw;
  } catch (const DataError& error) {
    path = error.path();
  } catch (...) {
  }
  std::throw_with_nested(
      DataError(origin, path, "the dataset failed on ", which, more, of, ": ", compat::message_of_current_exception()));
}

}  // namespace hasten::data
