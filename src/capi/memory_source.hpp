// SPDX-License-Identifier: Apache-2.0
// A weir_memory_source as a memory_source.
#pragma once

#include <memory>

#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "weir.h"
#include "weir/device/memory_source.hpp"

namespace weir { inline namespace v0 { namespace capi {

/// Calls the two functions of the C program. What they return is the error of the request.
class c_source final : public memory_source {
 public:
  /// invalid_argument: the structure or one of its functions is null.
  [[nodiscard]] static result<std::shared_ptr<memory_source>> create(
      const weir_memory_source* source) {
    WEIR_TRY_VALUE(known, take_in(source, weir_memory_source{}));
    if (source == nullptr || known.allocate == nullptr || known.deallocate == nullptr)
      return error{{.code = errc::invalid_argument,
                    .detail = "source needs an allocate and a deallocate function"}};
    return std::shared_ptr<memory_source>{std::make_shared<c_source>(known)};
  }
  explicit c_source(const weir_memory_source& source) noexcept : source_{source} {}

  result<void*> allocate(bytes size, const stream_ref& stream) override {
    void* memory = nullptr;
    const weir_error code =
        source_.allocate(source_.context, size.count(), stream.handle(), &memory);
    if (code != weir_ok) return refused(code, size);
    return memory;
  }
  result<void> deallocate(void* memory, bytes size) override {
    const weir_error code = source_.deallocate(source_.context, memory, size.count());
    if (code != weir_ok) return refused(code, size);
    return {};
  }

 private:
  [[nodiscard]] static error refused(weir_error code, bytes size) {
    return error{{.code = static_cast<errc>(code),
                  .requested = size,
                  .detail = "the program's memory source refused the request"}};
  }

  weir_memory_source source_;
};

}}}  // namespace weir::v0::capi
