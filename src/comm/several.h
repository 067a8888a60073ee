// Several operations as one: done when all are.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "hasten/comm/work.h"

namespace hasten::comm {

class Several : public detail::Operation {
 public:
  explicit Several(std::vector<Work<>> works) : works_(std::move(works)) {}

  bool done() override {
    return std::all_of(works_.begin(), works_.end(), [](const Work<>& work) { return work.done(); });
  }
  void wait() override {
    for (Work<>& work : works_) work.wait();
  }

 protected:
  /// Each is abandoned by itself.
  void on_abandon(std::shared_ptr<detail::Operation>) noexcept override {}

 private:
  std::vector<Work<>> works_;
};

/// Waits in the order of the list, and throws what the first throws that fails.
inline Work<> all_of(std::vector<Work<>> works) {
  return Work<>(std::make_shared<Several>(std::move(works)), [] {});
}

}  // namespace hasten::comm
