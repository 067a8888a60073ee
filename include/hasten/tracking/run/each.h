// each: a range-based loop with a progress bar: `for (auto& batch : tracking::each(train, {.description = "epoch
// 0"}))`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

#include "hasten/tracking/run/progress.h"

namespace hasten::tracking {

/// A range and the bar over it. The bar ends with the range, or with this object if the loop is left early.
template <class Range>
class Each {
  using Inner = decltype(std::begin(std::declval<Range&>()));
  using Last = decltype(std::end(std::declval<Range&>()));

 public:
  Each(Range&& range, std::optional<int64_t> total, ProgressOptions options)
      : range_(std::forward<Range>(range)), bar_(total, std::move(options)) {}

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using difference_type = std::ptrdiff_t;
    using reference = decltype(*std::declval<Inner&>());
    using value_type = std::remove_cvref_t<reference>;
    using pointer = std::add_pointer_t<reference>;

    Iterator(Inner inner, Progress* bar) : inner_(std::move(inner)), bar_(bar) {}
    reference operator*() { return *inner_; }
    Iterator& operator++() {
      ++inner_;
      bar_->advance();
      return *this;
    }
    bool operator!=(const Last& last) { return inner_ != last; }

   private:
    Inner inner_;
    Progress* bar_;
  };

  Iterator begin() { return Iterator(std::begin(range_), &bar_); }
  Last end() { return std::end(range_); }
  /// For a text behind the bar: `loop.bar().set_postfix("loss 0.4")`.
  Progress& bar() noexcept { return bar_; }

 private:
  Range range_;
  Progress bar_;
};

/// Loops over `range` (borrowed if it is an lvalue) with a bar. The total is range.size() if there is one, as number or
/// optional. Throws: nothing of its own.
template <class Range>
Each<Range> each(Range&& range, ProgressOptions options = {}) {
  std::optional<int64_t> total;
  if constexpr (requires {
                  { range.size() } -> std::convertible_to<std::optional<int64_t>>;
                }) {
    total = range.size();
  } else if constexpr (requires { range.size().has_value(); }) {
    if (const auto size = range.size()) total = static_cast<int64_t>(*size);
  }
  return Each<Range>(std::forward<Range>(range), total, std::move(options));
}

}  // namespace hasten::tracking
