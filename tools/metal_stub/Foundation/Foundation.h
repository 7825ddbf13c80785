// Our own declarations of the part of Foundation that src/lily_core/device/metal uses: names, selectors and types, nothing else.
// For Linux, where the host is type-checked for the Mac and run over software Metal; on a Mac the real framework is used.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __APPLE__
#include <Availability.h>
#include <dispatch/dispatch.h>
#include <objc/NSObject.h>
#define LILY_SINCE(version) __attribute__((availability(macosx, introduced = version)))
#else
typedef bool BOOL;  // as on arm64 macOS
#define YES ((BOOL)1)
#define NO ((BOOL)0)
#define nil __null
#define Nil __null
typedef struct objc_class* Class;
typedef struct objc_object* id;
typedef struct objc_selector* SEL;
typedef id (*IMP)(id, SEL, ...);
#define API_AVAILABLE(...)
#define LILY_SINCE(version)
#endif

typedef long NSInteger;
typedef unsigned long NSUInteger;
typedef double NSTimeInterval;
typedef double CFTimeInterval;

#ifndef NS_ENUM
#define NS_ENUM(type, name) \
  enum name : type name;    \
  enum name : type
// In C++ an options type is its integer type.
#define NS_OPTIONS(type, name) \
  type name;                   \
  enum __attribute__((flag_enum)) : name
#endif
#define NS_ASSUME_NONNULL_BEGIN _Pragma("clang assume_nonnull begin")
#define NS_ASSUME_NONNULL_END _Pragma("clang assume_nonnull end")
#define NS_RETURNS_RETAINED __attribute__((ns_returns_retained))
#define NS_RETURNS_INNER_POINTER __attribute__((objc_returns_inner_pointer))
#define LILY_EXTERN extern "C"

NS_ASSUME_NONNULL_BEGIN

@class NSString, NSError, NSArray<ObjectType>, NSDictionary<KeyType, ObjectType>;
typedef NSString* NSErrorDomain;
typedef NSString* NSErrorUserInfoKey;

typedef struct _NSRange {
  NSUInteger location, length;
} NSRange;
static inline NSRange NSMakeRange(NSUInteger location, NSUInteger length) {
  NSRange range = {location, length};
  return range;
}

#ifndef __APPLE__
@protocol NSObject
- (BOOL)isEqual:(nullable id)object;
@property(readonly) NSUInteger hash;
- (Class) class;
- (instancetype)self;
- (BOOL)isKindOfClass:(Class)type;
- (BOOL)conformsToProtocol:(Protocol*)protocol;
- (BOOL)respondsToSelector:(SEL)selector;
@property(readonly, copy) NSString* description;
@end

__attribute__((objc_root_class)) @interface NSObject<NSObject> {
  Class isa __attribute__((deprecated));
}
+ (instancetype)alloc;
+ (instancetype)new;
- (instancetype)init;
- (void)dealloc;
- (id)copy;
+ (Class) class;
@end
#endif

@protocol NSCopying
- (id)copyWithZone:(nullable struct _NSZone*)zone;
@end

typedef NS_ENUM(NSUInteger, NSStringEncoding){NSUTF8StringEncoding = 4};

@interface NSString : NSObject <NSCopying>
@property(readonly) NSUInteger length;
@property(nullable, readonly) const char* UTF8String NS_RETURNS_INNER_POINTER;
+ (nullable instancetype)stringWithUTF8String:(const char*)text;
+ (instancetype)stringWithFormat:(NSString*)format, ... __attribute__((format(__NSString__, 1, 2)));
- (nullable instancetype)initWithBytes:(const void*)bytes length:(NSUInteger)length encoding:(NSStringEncoding)encoding;
- (NSUInteger)lengthOfBytesUsingEncoding:(NSStringEncoding)encoding;
- (BOOL)isEqualToString:(NSString*)other;
@end

@interface NSError : NSObject <NSCopying>
+ (instancetype)errorWithDomain:(NSErrorDomain)domain
                           code:(NSInteger)code
                       userInfo:(nullable NSDictionary<NSErrorUserInfoKey, id>*)info;
@property(readonly, copy) NSErrorDomain domain;
@property(readonly) NSInteger code;
@property(readonly, copy) NSDictionary<NSErrorUserInfoKey, id>* userInfo;
@property(readonly, copy) NSString* localizedDescription;
@end

@interface NSArray<__covariant ObjectType> : NSObject <NSCopying>
@property(readonly) NSUInteger count;
- (ObjectType)objectAtIndex:(NSUInteger)index;
- (ObjectType)objectAtIndexedSubscript:(NSUInteger)index;
+ (instancetype)arrayWithObjects:(const ObjectType _Nonnull[_Nullable])objects count:(NSUInteger)count;
@end

@interface NSDictionary<__covariant KeyType, __covariant ObjectType> : NSObject <NSCopying>
@property(readonly) NSUInteger count;
@property(readonly, copy) NSArray<KeyType>* allKeys;
- (nullable ObjectType)objectForKey:(KeyType)key;
- (nullable ObjectType)objectForKeyedSubscript:(KeyType)key;
+ (instancetype)dictionaryWithObjects:(const ObjectType _Nonnull[_Nullable])objects
                              forKeys:(const KeyType<NSCopying> _Nonnull[_Nullable])keys
                                count:(NSUInteger)count;
@end

@interface NSNumber : NSObject <NSCopying>
+ (NSNumber*)numberWithInt:(int)value;
+ (NSNumber*)numberWithUnsignedLong:(unsigned long)value;
@property(readonly) int intValue;
@end

@interface NSURL : NSObject <NSCopying>
+ (instancetype)fileURLWithPath:(NSString*)path;
@property(nullable, readonly, copy) NSString* path;
@end

LILY_EXTERN NSErrorUserInfoKey const NSLocalizedDescriptionKey;
LILY_EXTERN void NSLog(NSString* format, ...) __attribute__((format(__NSString__, 1, 2)));

NS_ASSUME_NONNULL_END
