#include "hasten/core/hash.h"

#include <gtest/gtest.h>

namespace hasten::core {
namespace {

TEST(Hash, DigestsAreThoseOfTheStandards) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha1_hex("abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_EQ(sha1_hex(std::string("blob 6\0hello\n", 13)),
            "ce013625030ba8dba906f756967f9e9ca394464a");  // git hash-object
  EXPECT_EQ(hex_digits(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Hash, PartsGiveTheHashOfTheWhole) {
  const std::string bytes(100'000, 'x');
  Digest digest(Digest::Kind::kSha256);
  Xxh128Stream stream;
  for (size_t at = 0; at < bytes.size(); at += 777) {
    digest.update(std::string_view(bytes).substr(at, 777));
    stream.update(bytes.data() + at, std::min<size_t>(777, bytes.size() - at));
  }

  EXPECT_EQ(digest.hex(), sha256_hex(bytes));
  EXPECT_EQ(stream.value(), xxh3_128(bytes));
  stream.reset();
  EXPECT_EQ(stream.value(), xxh3_128(""));
}

TEST(Hash, Xxh128IsWrittenInItsCanonicalForm) {
  EXPECT_EQ(xxh3_128("").hex(), "99aa06d3014798d86001c324468d497f");  // of xxhsum -H2
  Xxh128 back;
  EXPECT_TRUE(Xxh128::parse(xxh3_128("abc").hex(), back));
  EXPECT_EQ(back, xxh3_128("abc"));
  EXPECT_FALSE(Xxh128::parse("99aa", back));
  EXPECT_FALSE(Xxh128::parse("zzaa06d3014798d86001c324468d497f", back));
}

TEST(Hash, ComparisonAndRandomBytes) {
  EXPECT_TRUE(equal_in_constant_time("same", "same"));
  EXPECT_FALSE(equal_in_constant_time("same", "sane"));
  EXPECT_EQ(random_bytes(16).size(), 16u);
  EXPECT_NE(random_bytes(16), random_bytes(16));
}

}  // namespace
}  // namespace hasten::core
