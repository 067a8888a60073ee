// NIfTI-1 volumes (.nii, .nii.gz): header of 348 bytes with int16 sizes at byte 40, the datatype at 70 and the data's
// offset at 108.
#pragma once

#include <ATen/ATen.h>
#include <hasten/core/error.h>
#include <hasten/core/text.h>
#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace example {

/// The bytes of a file, unpacked if it is gzipped.
inline std::string read_gzip(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) {
    throw hasten::DataError(hasten::Origin{"nifti"}, path, "cannot read ", path,
                            "; install Debian's package mricron-data, or name other files.");
  }
  std::string bytes;
  std::vector<char> part(1 << 20);
  int count = 0;
  while ((count = gzread(file, part.data(), static_cast<unsigned>(part.size()))) > 0)
    bytes.append(part.data(), static_cast<size_t>(count));
  const int closed = gzclose_r(file);
  if (count < 0 || closed != Z_OK)
    throw hasten::DataError(hasten::Origin{"nifti"}, path, path, " is damaged or truncated; fetch it again.");
  return bytes;
}

/// What the header tells about a volume: "181 x 217 x 181 voxels of 1 x 1 x 1 mm, datatype 2".
/// Throws: DataError as read_nifti.
inline std::string describe_nifti(const std::string& path) {
  const auto bytes = read_gzip(path);
  if (bytes.size() < 352) throw hasten::DataError(hasten::Origin{"nifti"}, path, path, ": no NIfTI-1 file.");
  int16_t sizes[8] = {}, type = 0;
  float voxel[8] = {};
  std::memcpy(sizes, bytes.data() + 40, sizeof sizes);
  std::memcpy(&type, bytes.data() + 70, 2);
  std::memcpy(voxel, bytes.data() + 76, sizeof voxel);
  const int unit = bytes[123] & 7;
  const char* name = unit == 1 ? "m" : unit == 2 ? "mm" : unit == 3 ? "um" : "an unknown unit";
  return hasten::text(sizes[1], " x ", sizes[2], " x ", sizes[3], " voxels of ", voxel[1], " x ", voxel[2], " x ",
                      voxel[3], ' ', name, ", datatype ", type);
}

/// Values as float32 [depth, height, width]: the file's last, middle and first dimension.
/// Throws: DataError for a missing or damaged file, other dimensions than 3, or a datatype that is not uint8, int16 or
/// float32.
inline at::Tensor read_nifti(const std::string& path) {
  const auto bytes = read_gzip(path);
  const auto refuse = [&](const auto&... why) {
    throw hasten::DataError(hasten::Origin{"nifti"}, path, path, ": ", why..., ".");
  };
  int32_t header_size = 0;
  if (bytes.size() >= 352) std::memcpy(&header_size, bytes.data(), 4);
  if (header_size != 348) refuse("no little-endian NIfTI-1 file; its first number is ", header_size, ", expected 348");
  int16_t sizes[8] = {}, type = 0;
  float offset = 0;
  std::memcpy(sizes, bytes.data() + 40, sizeof sizes);
  std::memcpy(&type, bytes.data() + 70, 2);
  std::memcpy(&offset, bytes.data() + 108, 4);
  if (sizes[0] < 3 || (sizes[0] > 3 && sizes[4] > 1)) refuse(sizes[0], " dimensions; expected one volume");
  const auto dtype = type == 2 ? at::kByte : type == 4 ? at::kShort : at::kFloat;
  if (type != 2 && type != 4 && type != 16)
    refuse("datatype ", type, "; expected 2 (uint8), 4 (int16) or 16 (float32)");
  auto values = at::empty({sizes[3], sizes[2], sizes[1]}, dtype);
  if (offset < 352 ||
      static_cast<double>(offset) + static_cast<double>(values.nbytes()) > static_cast<double>(bytes.size())) {
    refuse(bytes.size(), " bytes are fewer than ", sizes[1], " x ", sizes[2], " x ", sizes[3], " values behind byte ",
           offset);
  }
  std::memcpy(values.mutable_data_ptr(), bytes.data() + static_cast<size_t>(offset), values.nbytes());
  return values.to(at::kFloat);
}

}  // namespace example
