// The checks of a loader, and the common work of all kinds; see loader_impl.h.
#include "hasten/data/loader/detail/loader_impl.h"

#include <utility>

#include "data/loader/detail/dispatch.h"
#include "data/loader/detail/staging.h"
#include "data/loader/detail/verified_pass.h"
#include "data/sampler/rng_sync.h"
#include "hasten/comm/nested/nested_operations.h"

namespace hasten::data::detail {

void check_loader_options(const torch::data::FullDataLoaderOptions& options) {
  if (options.batch_size == 0) throw UsageError(Origin{"data"}, "batch_size = 0, expected at least 1.");
  if (options.workers > 0 && options.max_jobs == 0) {
    throw UsageError(Origin{"data"}, "max_jobs = 0 with workers = ", options.workers,
                     ": the workers would get nothing to do. Leave max_jobs unset (2 * workers) or give at least 1.");
  }
}

void check_prepare(const process::Process& process, const LoaderOptions& own, const LoaderFacts& facts) {
  const Origin origin{"data", process.rank(), process.world_size()};
  if (own.put_on_device && !process.device().is_cpu() && !facts.can_be_placed) {
    throw UsageError(origin, "put_on_device = true with device ", process.device().str(), ", but the tensors in the ",
                     "batches of this dataset are not known. Name them in your struct: friend auto ",
                     "hasten_fields(Batch& b) { return std::tie(b.x, b.y); }, or use put_on_device = false.");
  }
  if (own.use_stateful_dataloader && !facts.keeps_position) {
    throw UsageError(origin, "use_stateful_dataloader = true with enforce_ordering = false: batches that come ",
                     "as they are ready leave no position to go on from. Use enforce_ordering = true.");
  }
  if (process.world_size() == 1) return;
  const bool dispatches = own.dispatch_batches.value_or(false);
  if (dispatches && !facts.can_be_dispatched) {
    throw UsageError(origin, "dispatch_batches = true, but the tensors in the batches of this dataset are not known. ",
                     "Name them in your struct: friend auto hasten_fields(Batch& b) { return std::tie(b.x, b.y); }, ",
                     "or use dispatch_batches = false.");
  }
  if (facts.is_stream && !facts.has_rows) {
    throw UsageError(origin, "the samples in this stream's batches cannot be told apart, so they cannot be spread ",
                     "over ranks. Let it give std::vector of samples, or name the tensors of your struct by ",
                     "hasten_fields.");
  }
  if (facts.sampler_spreads_itself) {
    throw UsageError(origin, "this loader's sampler already gives each rank its part, and the loader would ",
                     "divide that part once more. Use RandomSampler or SequentialSampler.");
  }
  // The checks of a shard, now rather than in the first epoch.
  BatchShard({.rank = process.rank(),
              .world_size = process.world_size(),
              .batch_size = facts.batch_size,
              .split_batches = own.split_batches},
             nullptr);
}

LoaderImpl::LoaderImpl(const torch::data::DataLoaderOptions& options, const BatchOperations& operations)
    : given_options_(options), options_(options), operations_(operations) {
  check_loader_options(options_);
}

bool LoaderImpl::adopt(const process::Process& process, std::shared_ptr<training::GradientState> gradient_state,
                       const LoaderOptions& own, const LoaderFacts& facts) {
  if (prepared() && gradient_state == gradient_state_) return false;
  if (prepared()) throw_prepared_twice(origin());
  check_prepare(process, own, facts);
  process_ = process;
  gradient_state_ = std::move(gradient_state);
  own_ = own;
  options_.drop_last = options_.drop_last || own.drop_last;
  // In a world of one as well if it is requested, so that the loop gets the same remainders on any number of ranks.
  const bool by_default = facts.is_stream && own.put_on_device && process.world_size() > 1;
  dispatches_ = facts.can_be_dispatched && own.dispatch_batches.value_or(by_default);
  // One process that computes the shares of all ranks reads each itself.
  if (const auto* recorder = training::verify_recorder(); recorder && recorder->num_shares() > 1) dispatches_ = false;
  return true;
}

Origin LoaderImpl::origin() const {
  return process_ ? Origin{"data", process_->rank(), process_->world_size()} : Origin{"data"};
}

BatchShardOptions LoaderImpl::shard(std::optional<size_t> batch_size) const {
  BatchShardOptions result{.batch_size = batch_size, .even_batches = false};
  if (world_size() == 1 || dispatches_) return result;
  result.rank = process_->rank();
  result.world_size = process_->world_size();
  result.split_batches = own_.split_batches;
  result.even_batches = gradient_state_->loaders().even_batches().value_or(own_.even_batches);
  result.drop_last = options_.drop_last;
  return result;
}

size_t LoaderImpl::dispatched_length(size_t num_batches) const noexcept {
  if (own_.split_batches) return num_batches;
  return num_batches / world_size() + (!options_.drop_last && num_batches % world_size() > 0 ? 1 : 0);
}

void LoaderImpl::require_all(bool shares) const {
  if (!gradient_state_) return;
  const bool synchronizes = own_.synchronizes(RngType::kTorch) || own_.synchronizes(RngType::kCuda);
  if (shares || synchronizes || dispatches_) gradient_state_->require_all("the beginning of a loop over a loader");
}

void LoaderImpl::synchronize_generators() const {
  if (auto* recorder = training::verify_recorder()) recorder->begin_pass();
  if (!process_) return;
  if (own_.synchronizes(RngType::kTorch)) synchronize_cpu_generator(process_->group());
  if (own_.synchronizes(RngType::kCuda)) synchronize_cuda_generator(process_->group(), process_->device());
}

void LoaderImpl::show(PipelineStages& stages) const {
  stages.origin = origin();
  if (process_ && own_.put_on_device && !process_->device().is_cpu() && operations_.map_tensors)
    stages.transfer = transfer_stage();
  stages.received = [follow = epochs_.follow(), then = std::move(stages.received)](std::optional<size_t> end) {
    follow(end);
    if (then) then(end);
  };
  if (process_) stages.failed = leaves_words(process_->group());
  stages.gradient_state = gradient_state_;
  stages.remainder.drop_last = options_.drop_last;
}

TransferStage LoaderImpl::transfer_stage() const {
  const c10::Device device = process_->device();
  if (own_.pin_memory && Staging::serves(device)) return staged(std::make_shared<Staging>(device), operations_);
  return {.send = [device, of = operations_, non_blocking = own_.non_blocking](const AnyBatch& batch) {
    return of.map_tensors(batch,
                          [&](const at::Tensor& tensor) { return comm::send_to_device(tensor, device, non_blocking); });
  }};
}

std::shared_ptr<Dispatcher> LoaderImpl::dispatcher(size_t position, ReadBase read,
                                                   std::function<AnyBatch()> first_rows) const {
  return std::make_shared<Dispatcher>(Dispatcher::Options{.group = process_->group(),
                                                          .operations = operations_,
                                                          .split_batches = own_.split_batches,
                                                          .drop_last = options_.drop_last,
                                                          .position = position,
                                                          .first_rows = std::move(first_rows),
                                                          .origin = origin()},
                                      std::move(read));
}

PipelineStages LoaderImpl::dispatched(std::shared_ptr<Dispatcher> dispatcher, std::shared_ptr<void> owner) const {
  PipelineStages stages;
  show(stages);
  stages.plan = [dispatcher = std::move(dispatcher), gradient_state = gradient_state_] {
    gradient_state->require_all("the next batch of a loader that is dispatched");
    return dispatcher->next();
  };
  stages.failed = nullptr;  // rank 0 sends its error; closing connections here could overtake it
  stages.remainder.at_last = LastRemainder::kAlways;
  stages.owner = std::move(owner);
  if (auto* recorder = training::verify_recorder()) {
    std::make_shared<VerifiedPass>(*recorder, operations_, true, process_->rank())->observe(stages);
  }
  return stages;
}

void throw_prepared_twice(const Origin& origin) {
  throw UsageError(origin, "this loader was prepared by another Accelerator; a loader belongs to one. ",
                   "Make a second data::loader of the same dataset.");
}

void throw_unknown_size(const Origin& origin) {
  throw UsageError(origin, "neither the sampler nor the dataset of this loader knows its size, so the number of ",
                   "batches is not known. Give the sampler a size() of its own, or count the batches.");
}

}  // namespace hasten::data::detail
