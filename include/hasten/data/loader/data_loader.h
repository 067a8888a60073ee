// DataLoader: a loader of any dataset and sampler that gives batches of one type, for members and function parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "hasten/data/loader/detail/epoch_pipeline.h"
#include "hasten/data/loader/loader.h"
#include "hasten/data/loader/loader_state.h"

namespace hasten::data {

/// `void train(hasten::DataLoader<torch::data::Example<>>& batches)`. Made from a loader, prepared or not; copies share
/// it.
template <class Batch>
class DataLoader {
 public:
  using Iterator = PassIterator<Batch>;

  template <class L>
    requires(is_loader_v<L> && std::is_same_v<typename std::remove_cvref_t<L>::Batch, Batch>)
  DataLoader(L&& loader) : loader_(std::make_shared<Of<std::remove_cvref_t<L>>>(std::forward<L>(loader))) {}
  // Moves copy: a handle that was moved from is one still.
  DataLoader(const DataLoader&) = default;
  DataLoader& operator=(const DataLoader&) = default;

  /// Loader's functions of these names.
  Iterator begin() const { return loader_->begin(); }
  Iterator end() const { return Iterator(); }
  size_t size() const { return loader_->size(); }
  size_t total_batch_size() const { return loader_->total_batch_size(); }
  void set_epoch(uint64_t epoch) const { loader_->set_epoch(epoch); }
  LoaderState state() const { return loader_->state(); }
  void load_state(const LoaderState& state) const { loader_->load_state(state); }

 private:
  struct Any {
    virtual ~Any() = default;
    virtual Iterator begin() const = 0;
    virtual size_t size() const = 0;
    virtual size_t total_batch_size() const = 0;
    virtual void set_epoch(uint64_t epoch) const = 0;
    virtual LoaderState state() const = 0;
    virtual void load_state(const LoaderState& state) const = 0;
  };
  template <class L>
  struct Of : Any {
    explicit Of(L own) : loader(std::move(own)) {}
    Iterator begin() const override { return loader.begin(); }
    size_t size() const override { return loader.size(); }
    size_t total_batch_size() const override { return loader.total_batch_size(); }
    void set_epoch(uint64_t epoch) const override { loader.set_epoch(epoch); }
    LoaderState state() const override { return loader.state(); }
    void load_state(const LoaderState& state) const override { loader.load_state(state); }
    L loader;
  };
  std::shared_ptr<const Any> loader_;
};

}  // namespace hasten::data
