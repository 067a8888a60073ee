// ReadOrder: the order in which units are read, so that the next one can be on its way while one is in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace hasten::offload {

/// Remembers for each pair of reads the one that followed. A single number would not do: in backward a unit is followed
/// by another one than in forward.
class ReadOrder {
 public:
  /// The last two reads; -1 for none.
  using Place = std::pair<int64_t, int64_t>;

  /// A read of the unit that was read last counts once.
  void note(size_t unit) {
    const auto now = static_cast<int64_t>(unit);
    if (place_.second == now) return;
    if (place_.second >= 0) next_[place_] = unit;
    place_ = {place_.second, now};
  }
  const Place& place() const noexcept { return place_; }
  /// Returns the unit that was read last.
  std::optional<size_t> last() const {
    return place_.second < 0 ? std::nullopt : std::optional<size_t>(static_cast<size_t>(place_.second));
  }
  /// Returns the unit that came next the last time.
  std::optional<size_t> after(const Place& place) const {
    const auto found = next_.find(place);
    return found == next_.end() ? std::nullopt : std::optional<size_t>(found->second);
  }
  static Place behind(const Place& place, size_t unit) { return {place.second, static_cast<int64_t>(unit)}; }
  /// The next read is the first one; what followed which stays known.
  void restart() noexcept { place_ = {-1, -1}; }

 private:
  Place place_ = {-1, -1};
  std::map<Place, size_t> next_;
};

}  // namespace hasten::offload
