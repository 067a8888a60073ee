// SaveBoard: short notes between the ranks' writer threads, over the run's store. They never use the training group.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "hasten/comm/store/store.h"

namespace hasten::checkpoint {

class SaveBoard {
 public:
  /// Without a store the board serves one rank.
  explicit SaveBoard(std::optional<comm::Store> store) : store_(std::move(store)) {}
  /// Throws: CommError if the store is gone.
  void put(const std::string& key, const std::string& text) {
    if (store_) return store_->set(key, text);
    const std::lock_guard lock(mutex_);
    own_[key] = text;
  }
  std::optional<std::string> get(const std::string& key) const {
    if (store_) return store_->get(key);
    const std::lock_guard lock(mutex_);
    const auto found = own_.find(key);
    return found == own_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::optional<comm::Store> store_;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> own_;
};

}  // namespace hasten::checkpoint
