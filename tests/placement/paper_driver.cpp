// SPDX-License-Identifier: Apache-2.0
#include "placement/paper_driver.hpp"

#include <iterator>

namespace weir::placement_test {

using driver::CUDA_ERROR_INVALID_VALUE;
using driver::CUDA_ERROR_OUT_OF_MEMORY;
using driver::CUDA_SUCCESS;
using driver::CUdeviceptr;
using driver::CUresult;

paper_driver* paper_driver::current_ = nullptr;

paper_driver::~paper_driver() { current_ = nullptr; }

void paper_driver::fail(call which, std::uint64_t nth, CUresult result) {
  faults_.push_back({which, nth, result});
}

template <class Act>
CUresult paper_driver::answer(call which, std::initializer_list<std::uint64_t> arguments, Act act) {
  ++counts_[static_cast<std::size_t>(which)];
  told_.add(static_cast<std::uint64_t>(which));
  for (const std::uint64_t each : arguments) told_.add(each);
  CUresult result = CUDA_SUCCESS;
  for (auto each = faults_.begin(); each != faults_.end();) {
    if (each->which == which && --each->left == 0) {
      result = each->result;
      each = faults_.erase(each);
    } else {
      ++each;
    }
  }
  if (result == CUDA_SUCCESS) result = act();
  if (result != CUDA_SUCCESS) ++refused_;
  told_.add(static_cast<std::uint64_t>(result));
  return result;
}

std::uint64_t paper_driver::place(std::uint64_t size, std::uint64_t alignment) {
  const std::uint64_t step = alignment == 0 ? std::uint64_t{2} << 20 : alignment;
  const std::uint64_t room = (size + step - 1) / step * step;
  if (places_++ % 2 == 0) return below_ = (below_ - room) / step * step;
  const std::uint64_t base = (above_ + step - 1) / step * step;
  above_ = base + room;
  return base;
}

bool paper_driver::take(std::uint64_t size) noexcept {
  if (size > rules_.memory - used_) return false;
  used_ += size;
  return true;
}

std::vector<std::uint64_t> paper_driver::mappings_in(std::uint64_t address,
                                                     std::uint64_t size) const {
  std::vector<std::uint64_t> inside;
  std::uint64_t end = address;
  for (auto at = mappings_.find(address);
       at != mappings_.end() && at->first == end && end < address + size; ++at) {
    inside.push_back(at->first);
    end += at->second.size;
  }
  if (end != address + size) inside.clear();
  return inside;
}

void paper_driver::drop_if_unused(std::map<std::uint64_t, handle>::iterator position) {
  if (!position->second.released || position->second.mappings != 0) return;
  used_ -= position->second.size;
  handles_.erase(position);
}

paper_driver::paper_driver(const driver::table& others, rules chosen, digest& told)
    : calls_{others}, rules_{chosen}, told_{told} {
  current_ = this;
  calls_.mem_alloc = [](CUdeviceptr* address, std::size_t size) {
    paper_driver& own = *current_;
    return own.answer(call::allocate, {size}, [&] {
      if (!own.take(size)) return CUDA_ERROR_OUT_OF_MEMORY;
      *address = own.place(size, 0);
      own.plain_.emplace(*address, size);
      return CUDA_SUCCESS;
    });
  };
  calls_.mem_free = [](CUdeviceptr address) {
    paper_driver& own = *current_;
    return own.answer(call::free, {address}, [&] {
      const auto known = own.plain_.find(address);
      if (known == own.plain_.end()) return CUDA_ERROR_INVALID_VALUE;
      own.used_ -= known->second;
      own.plain_.erase(known);
      return CUDA_SUCCESS;
    });
  };
  calls_.mem_address_reserve = [](CUdeviceptr* address, std::size_t size, std::size_t alignment,
                                  CUdeviceptr /*hint*/, unsigned long long /*flags*/) {
    paper_driver& own = *current_;
    return own.answer(call::reserve, {size, alignment}, [&] {
      if (own.rules_.most_addresses != 0 && size > own.rules_.most_addresses)
        return CUDA_ERROR_OUT_OF_MEMORY;
      *address = own.place(size, alignment);
      own.reservations_.emplace(*address, size);
      return CUDA_SUCCESS;
    });
  };
  calls_.mem_address_free = [](CUdeviceptr address, std::size_t size) {
    paper_driver& own = *current_;
    return own.answer(call::free_addresses, {address, size}, [&] {
      const auto known = own.reservations_.find(address);
      if (known == own.reservations_.end() || known->second != size)
        return CUDA_ERROR_INVALID_VALUE;
      const auto inside = own.mappings_.lower_bound(address);
      if (inside != own.mappings_.end() && inside->first < address + size)
        return CUDA_ERROR_INVALID_VALUE;
      own.reservations_.erase(known);
      return CUDA_SUCCESS;
    });
  };
  calls_.mem_create = [](driver::CUmemGenericAllocationHandle* made, std::size_t size,
                         const driver::CUmemAllocationProp* properties,
                         unsigned long long /*flags*/) {
    paper_driver& own = *current_;
    const auto kinds = static_cast<std::uint64_t>(properties->requestedHandleTypes);
    return own.answer(call::create, {size, kinds}, [&] {
      if (!own.take(size)) return CUDA_ERROR_OUT_OF_MEMORY;
      *made = own.next_handle_++;
      own.handles_[*made].size = size;
      return CUDA_SUCCESS;
    });
  };
  calls_.mem_release = [](driver::CUmemGenericAllocationHandle number) {
    paper_driver& own = *current_;
    return own.answer(call::release, {number}, [&] {
      const auto known = own.handles_.find(number);
      if (known == own.handles_.end() || known->second.released) return CUDA_ERROR_INVALID_VALUE;
      known->second.released = true;
      own.drop_if_unused(known);
      return CUDA_SUCCESS;
    });
  };
  calls_.mem_map = [](CUdeviceptr address, std::size_t size, std::size_t offset,
                      driver::CUmemGenericAllocationHandle number, unsigned long long /*flags*/) {
    paper_driver& own = *current_;
    return own.answer(call::map, {address, size, offset, number}, [&] {
      const auto known = own.handles_.find(number);
      if (known == own.handles_.end() || known->second.size != size || offset != 0)
        return CUDA_ERROR_INVALID_VALUE;
      const auto range = own.reservations_.upper_bound(address);
      if (range == own.reservations_.begin()) return CUDA_ERROR_INVALID_VALUE;
      const auto& [base, room] = *std::prev(range);
      const auto above = own.mappings_.lower_bound(address);
      const bool over = above != own.mappings_.end() && above->first < address + size;
      const bool under = above != own.mappings_.begin() &&
                         std::prev(above)->first + std::prev(above)->second.size > address;
      if (address + size > base + room || over || under) return CUDA_ERROR_INVALID_VALUE;
      own.mappings_[address] = {size, number};
      ++known->second.mappings;
      return CUDA_SUCCESS;
    });
  };
  calls_.mem_unmap = [](CUdeviceptr address, std::size_t size) {
    paper_driver& own = *current_;
    return own.answer(call::unmap, {address, size}, [&] {
      const auto inside = own.mappings_in(address, size);
      if (inside.empty()) return CUDA_ERROR_INVALID_VALUE;
      for (const std::uint64_t each : inside) {
        const auto under = own.handles_.find(own.mappings_[each].handle);
        --under->second.mappings;
        own.mappings_.erase(each);
        own.drop_if_unused(under);
      }
      return CUDA_SUCCESS;
    });
  };
  calls_.mem_set_access = [](CUdeviceptr address, std::size_t size,
                             const driver::CUmemAccessDesc* rights, std::size_t count) {
    paper_driver& own = *current_;
    return own.answer(call::set_access, {address, size, count}, [&] {
      for (std::size_t i = 0; i < count; ++i) {
        own.told_.add(static_cast<std::uint64_t>(rights[i].location.id));
        own.told_.add(static_cast<std::uint64_t>(rights[i].flags));
      }
      return own.mappings_in(address, size).empty() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    });
  };
}

}  // namespace weir::placement_test
