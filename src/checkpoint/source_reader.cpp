// See source_reader.h.
#include "checkpoint/source_reader.h"

#include "hasten/checkpoint/python_tensor.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/files/folders/bulk_read.h"

namespace hasten::checkpoint {
namespace {

files::Manifest manifest_of(const files::TensorSource& source, std::set<std::string>& outside_files) {
  std::vector<std::string> left_out;
  auto manifest = files::manifest_of_source(source, left_out);
  outside_files.insert(left_out.begin(), left_out.end());
  return manifest;
}

}  // namespace

SourceReader::SourceReader(const files::TensorSource& source)
    : source_(source),
      manifest_(manifest_of(source, outside_files_)),
      in_files_(manifest_, source.path(), /*verify=*/false) {}

void SourceReader::into(const at::Tensor& target, const std::string& name, bool through_copy) {
  if (outside_files_.count(name)) {
    direct_.push_back({name, [this, target, name, through_copy] { read_into(target, source_, name, through_copy); }});
  } else {
    in_files_.into(target, name, through_copy);
  }
}

void SourceReader::into(const std::function<void(const at::Tensor&)>& put, const std::string& name) {
  if (outside_files_.count(name)) {
    direct_.push_back({name, [this, put, name] { put(read_tensor(source_, name)); }});
  } else {
    in_files_.into(put, name);
  }
}

void SourceReader::read(const comm::Group* share) {
  in_files_.read(share);
  bytes_read_ += in_files_.bytes_read();
  for (const auto& one : direct_) {
    one.read();
    bytes_read_ += static_cast<uint64_t>(files::bytes_of(source_.info(one.name)));
  }
}

}  // namespace hasten::checkpoint
