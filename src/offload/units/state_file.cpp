// See state_file.h.
#include "hasten/offload/units/state_file.h"

#include <sys/mman.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>

#include "hasten/core/error.h"
#include "hasten/core/memory_file.h"

namespace hasten::offload {
namespace {

constexpr int64_t kPage = 4096;

// A file of this process's in the folder, mapped and without a name.
std::shared_ptr<Mapping> map_new_file(const std::string& folder, int64_t num_bytes, const void* owner) {
  // Objects of one process, and processes of one folder, are told apart while the name exists.
  const std::string path = (std::filesystem::path(folder) / text("hasten-state-", getpid(), '-', owner)).string();
  const auto file = MemoryFile::create_at(path, num_bytes);
  unlink(path.c_str());
  return std::make_shared<Mapping>(file.map(Mapping::Access::kReadWrite));
}

void advise(const at::Tensor& tensor, int advice) noexcept {
  // Whole pages: each tensor has its own.
  auto* begin = const_cast<void*>(tensor.const_data_ptr());
  const auto bytes = (tensor.nbytes() + kPage - 1) / kPage * kPage;
  madvise(begin, bytes, advice);
}

}  // namespace

struct StateFile::Impl {
  std::string folder;
  std::set<const void*> tensors = {};
  int64_t num_bytes = 0;
};

StateFile::StateFile(const std::string& folder) : impl_(std::make_unique<Impl>(Impl{folder})) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw DataError(Origin{"offload"}, folder, "the folder '", folder, "' for offloaded state cannot be made: ",
                    error.message(), ". Choose one that can be written to.");
  }
  map_new_file(folder, kPage, impl_.get());
}

StateFile::~StateFile() = default;
StateFile::StateFile(StateFile&&) noexcept = default;
StateFile& StateFile::operator=(StateFile&&) noexcept = default;

at::Tensor StateFile::store(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  if (bytes == 0) return tensor;
  const auto mapping = map_new_file(impl_->folder, (bytes + kPage - 1) / kPage * kPage, impl_.get());
  std::memcpy(mapping->data(), tensor.const_data_ptr(), static_cast<size_t>(bytes));
  impl_->tensors.insert(mapping->data());
  impl_->num_bytes += bytes;
  return torch::from_blob(mapping->data(), tensor.sizes(), [mapping](void*) {}, tensor.scalar_type());
}

bool StateFile::holds(const at::Tensor& tensor) const {
  return tensor.defined() && tensor.has_storage() && impl_->tensors.contains(tensor.const_data_ptr());
}

void StateFile::fetch(const at::Tensor& tensor) const noexcept {
  advise(tensor, MADV_WILLNEED);
}

void StateFile::release(const at::Tensor& tensor) const noexcept {
  advise(tensor, MADV_PAGEOUT);
}

int64_t StateFile::num_bytes() const noexcept {
  return impl_->num_bytes;
}

}  // namespace hasten::offload
